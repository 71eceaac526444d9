// SPDX-License-Identifier: Apache-2.0
// Streaming hash over fixed-size records; texts are built only for logs that are kept.
#include "sim/trace_recorder.h"

#include <xxhash.h>

#include <array>
#include <string>
#include <utility>

#include "core/check.h"

namespace lockstep::sim {
namespace {

// Element types by name, so that the hash does not depend on LibTorch's numbering.
std::uint64_t hash_text(const std::string& text) {
  return text.empty() ? 0 : XXH3_64bits(text.data(), text.size());
}

template <std::size_t kWords>
void update(XXH3_state_s* state, const std::array<std::uint64_t, kWords>& words) {
  XXH3_64bits_update(state, words.data(), sizeof(words));
}

}  // namespace

void TraceRecorder::FreeState::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

TraceRecorder::TraceRecorder(const VirtualClock& clock, bool keep_entries)
    : clock_(clock), keep_entries_(keep_entries), state_(XXH3_createState()) {
  LOCKSTEP_CHECK(state_ != nullptr, "no memory for the trace hash");
  XXH3_64bits_reset(state_.get());
}

TraceRecorder::~TraceRecorder() = default;

void TraceRecorder::record(std::int64_t rank, const Event& event) { append(rank, event, nullptr); }

void TraceRecorder::record(std::int64_t rank, EventKind kind, const CollectiveInfo& info,
                           std::uint64_t data_hash) {
  append(rank, {kind, info.seq}, &info);
  const std::array<std::uint64_t, 9> words = {
      static_cast<std::uint64_t>(info.kind),
      static_cast<std::uint64_t>(info.op),
      static_cast<std::uint64_t>(info.tag.site),
      static_cast<std::uint64_t>(info.tag.step),
      static_cast<std::uint64_t>(info.tag.bucket),
      static_cast<std::uint64_t>(info.numel),
      static_cast<std::uint64_t>(info.root),
      hash_text(info.dtype),
      data_hash,
  };
  update(state_.get(), words);
}

std::uint64_t TraceRecorder::hash_bytes(const void* bytes, std::size_t num_bytes) {
  return XXH3_64bits(bytes, num_bytes);
}

Trace TraceRecorder::take() {
  trace_.hash = XXH3_64bits_digest(state_.get());
  return std::move(trace_);
}

void TraceRecorder::append(std::int64_t rank, const Event& event, const CollectiveInfo* info) {
  const std::array<std::uint64_t, 4> words = {
      static_cast<std::uint64_t>(clock_.now_ns()),
      static_cast<std::uint64_t>(rank),
      static_cast<std::uint64_t>(event.kind),
      static_cast<std::uint64_t>(event.index),
  };
  update(state_.get(), words);
  ++trace_.num_events;
  if (keep_entries_) {
    trace_.entries.push_back(
        {clock_.now_ns(), rank, event, info == nullptr ? std::string() : to_string(*info)});
  }
}

}  // namespace lockstep::sim
