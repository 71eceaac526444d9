// SPDX-License-Identifier: Apache-2.0
// Narrower blocks, and blocks of simpler kinds.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "harness/fuzz/shrink/block_edits.h"
#include "harness/fuzz/shrink/reductions.h"

namespace lockstep::harness::fuzz {

namespace {

using Change = std::function<std::int64_t(std::int64_t)>;

const std::vector<Change>& narrower() {
  static const std::vector<Change> all = {
      [](std::int64_t) { return std::int64_t{1}; },
      [](std::int64_t size) { return std::min<std::int64_t>(size, 2); },
      [](std::int64_t size) { return (size + 1) / 2; },
      [](std::int64_t size) { return std::max<std::int64_t>(1, size - 1); },
  };
  return all;
}

void narrow_all(Case& value, const Change& change) {
  if (value.model.kind == "mlp") {
    for (std::int64_t& width : value.model.widths) width = change(width);
  }
  change_blocks(value.model, [&](BlockSpec& spec) {
    for (std::int64_t* size : {&spec.in, &spec.out, &spec.kernel}) {
      if (*size > 0) *size = change(*size);
    }
  });
  refit(value);
}

void narrow_widths(Candidates& candidates) {
  for (std::size_t i = 0; i < candidates.value().model.widths.size(); ++i) {
    for (const Change& change : narrower()) {
      candidates.add([&](Case& value) {
        std::int64_t& width = value.model.widths[i];
        width = change(width);
      });
    }
  }
}

void narrow_blocks(Candidates& candidates) {
  for (std::size_t i = 0; i < candidates.value().model.blocks.size(); ++i) {
    for (std::int64_t BlockSpec::*size : {&BlockSpec::out, &BlockSpec::in, &BlockSpec::kernel}) {
      for (const Change& change : narrower()) {
        candidates.add([&](Case& value) {
          std::string& text = value.model.blocks[i].second;
          BlockSpec spec = parse_block(text).spec;
          if (spec.*size > 0) spec.*size = change(spec.*size);
          text = block_text(spec);
          refit(value);
        });
      }
    }
  }
}

/// What a block can become, the simplest first.
std::vector<BlockSpec> simpler_than(const BlockSpec& spec) {
  std::vector<BlockSpec> all;
  const auto with = [&](const std::function<void(BlockSpec&)>& change) {
    BlockSpec changed = spec;
    change(changed);
    all.push_back(changed);
  };
  const auto plain = [&](BlockKind kind) {
    BlockSpec changed;
    changed.kind = kind;
    changed.in = spec.in > 0 ? spec.in : spec.out;
    changed.out = spec.out;
    all.push_back(changed);
  };
  switch (spec.kind) {
    case BlockKind::kConv2d:
    case BlockKind::kEmbedding:
      plain(BlockKind::kLinear);
      break;
    case BlockKind::kSyncBatchNorm:
      plain(BlockKind::kScale);
      plain(BlockKind::kBatchNorm);
      break;
    case BlockKind::kBatchNorm:
    case BlockKind::kLayerNorm:
      plain(BlockKind::kScale);
      break;
    case BlockKind::kTanh:
      plain(BlockKind::kRelu);
      break;
    default:
      break;
  }
  with([](BlockSpec& changed) {
    changed.bias = true;
    changed.sparse = false;
    changed.checkpoint = Checkpointing::kNone;
    changed.dtype.clear();
  });
  with([](BlockSpec& changed) { changed.bias = true; });
  with([](BlockSpec& changed) { changed.sparse = false; });
  with([](BlockSpec& changed) { changed.checkpoint = Checkpointing::kNone; });
  with([](BlockSpec& changed) { changed.dtype.clear(); });
  with([](BlockSpec& changed) { changed.rate = std::min(changed.rate, 0.5); });
  return all;
}

}  // namespace

void reduce_sizes(Candidates& candidates) {
  for (const Change& change : narrower()) {
    candidates.add([&](Case& value) { narrow_all(value, change); });
  }
  if (candidates.value().model.kind == "mlp") {
    narrow_widths(candidates);
  } else {
    narrow_blocks(candidates);
  }
}

void reduce_block_kinds(Candidates& candidates) {
  const auto& blocks = candidates.value().model.blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockSpec spec = parse_block(blocks[i].second).spec;
    for (const BlockSpec& simple : simpler_than(spec)) {
      const std::string text = block_text(simple);
      if (text == blocks[i].second) continue;
      candidates.add([&](Case& value) {
        value.model.blocks[i].second = text;
        refit(value);
      });
    }
  }
}

}  // namespace lockstep::harness::fuzz
