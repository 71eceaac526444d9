// SPDX-License-Identifier: Apache-2.0
// Run records as bytes, so that worker processes can hand them over; checksums and names.
#include <xxhash.h>

#include "core/check.h"
#include "core/error.h"
#include "harness/archive.h"
#include "harness/run.h"

namespace lockstep::harness {

// See Note [One list of fields].

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const TensorSlot* /*record*/) {
  auto& [name, dtype, sizes, defined, offset_bytes, num_bytes, sparse] = self;
  archive(name, dtype, sizes, defined, offset_bytes, num_bytes, sparse);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const Snapshot* /*record*/) {
  auto& [slots, bytes] = self;
  archive(slots, bytes);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const ReductionPlan* /*record*/) {
  auto& [buckets, division] = self;
  archive(buckets, division);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const StepRecord* /*record*/) {
  auto& [step, losses, gradients, parameters, buffers, optimizer, plans, inexact_in] = self;
  archive(step, losses, gradients, parameters, buffers, optimizer, plans, inexact_in);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const WaitingIn* /*record*/) {
  auto& [collective, site, seq, step, bucket, numel, dtype, waiting_for] = self;
  archive(collective, site, seq, step, bucket, numel, dtype, waiting_for);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const NeverReady* /*record*/) {
  auto& [parameter, bucket, step, micro_batch, why] = self;
  archive(parameter, bucket, step, micro_batch, why);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const CollectiveRecord* /*record*/) {
  auto& [collective, site, step, numel, dtype, bucket] = self;
  archive(collective, site, step, numel, dtype, bucket);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const RankRun* /*record*/) {
  auto& [rank, initial_parameters, initial_buffers, steps, final_parameters, final_buffers, ending,
         error_kind, error_message, signal, at_step, at_phase, waiting, never_ready,
         bucket_all_reduces, rebuilds, collectives, events_done, faults_done, parameters_at_end,
         ended_at_ns, longest_wait_ns, listens_on] = self;
  archive(rank, initial_parameters, initial_buffers, steps, final_parameters, final_buffers, ending,
          error_kind, error_message, signal, at_step, at_phase, waiting, never_ready,
          bucket_all_reduces, rebuilds, collectives, events_done, faults_done, parameters_at_end,
          ended_at_ns, longest_wait_ns, listens_on);
}

namespace {

/// What the bytes of a record begin with.
struct Header {
  std::uint64_t magic = 0x314e55526b4e6152;  ///< "RaNkRUN1"
  std::uint64_t checksum = 0;                ///< of the body
  std::uint64_t num_bytes = 0;               ///< of the body
};

void check_slots(const Snapshot& snapshot) {
  const auto total_bytes = static_cast<std::int64_t>(snapshot.bytes.size());
  if (!snapshot.slots) {
    LOCKSTEP_USAGE(total_bytes == 0, "a snapshot of {} bytes without slots", total_bytes);
    return;
  }
  for (const TensorSlot& slot : *snapshot.slots) {
    LOCKSTEP_USAGE(slot.offset_bytes >= 0 && slot.num_bytes >= 0 && slot.num_bytes <= total_bytes &&
                       slot.offset_bytes <= total_bytes - slot.num_bytes,
                   "tensor {} lies outside of its snapshot", slot.name);
  }
}

void check_record(const RankRun& run) {
  LOCKSTEP_USAGE(run.ending <= Ending::kCrashed, "unknown ending {}", static_cast<int>(run.ending));
  check_slots(run.initial_parameters);
  check_slots(run.initial_buffers);
  check_slots(run.final_parameters);
  check_slots(run.final_buffers);
  for (const StepRecord& step : run.steps) {
    check_slots(step.gradients);
    check_slots(step.parameters);
    check_slots(step.buffers);
    check_slots(step.optimizer);
    for (const auto& plan : step.plans) {
      LOCKSTEP_USAGE(!plan || plan->division <= Division::kAfter, "unknown division {}",
                     static_cast<int>(plan->division));
    }
  }
}

}  // namespace

std::vector<std::uint8_t> serialize(const RankRun& run) {
  const std::vector<std::uint8_t> body = archive_bytes(run);
  Header header;
  header.checksum = XXH3_64bits(body.data(), body.size());
  header.num_bytes = body.size();
  std::vector<std::uint8_t> bytes(sizeof(header) + body.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::copy(body.begin(), body.end(), bytes.begin() + sizeof(header));
  return bytes;
}

RankRun deserialize_rank_run(const std::vector<std::uint8_t>& bytes) {
  Header header;
  const std::uint64_t magic = header.magic;
  LOCKSTEP_USAGE(bytes.size() >= sizeof(header), "{} bytes are no record of a rank", bytes.size());
  std::memcpy(&header, bytes.data(), sizeof(header));
  LOCKSTEP_USAGE(header.magic == magic, "these bytes are no record of a rank");
  const std::vector<std::uint8_t> body(bytes.begin() + sizeof(header), bytes.end());
  LOCKSTEP_USAGE(header.num_bytes == body.size(), "a record of {} bytes has {}", header.num_bytes,
                 body.size());
  LOCKSTEP_USAGE(header.checksum == XXH3_64bits(body.data(), body.size()),
                 "the bytes of a record were damaged");
  auto run = from_archive<RankRun>(body);
  check_record(run);
  return run;
}

std::uint64_t checksum(const Snapshot& snapshot) {
  return XXH3_64bits(snapshot.bytes.data(), snapshot.bytes.size());
}

const char* to_string(Ending ending) {
  switch (ending) {
    case Ending::kFinished:
      return "finished";
    case Ending::kLeft:
      return "left";
    case Ending::kFailed:
      return "failed";
    case Ending::kWaiting:
      return "waiting";
    case Ending::kCrashed:
      return "crashed";
  }
  throw InvariantError("unknown ending");
}

}  // namespace lockstep::harness
