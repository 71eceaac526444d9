// SPDX-License-Identifier: Apache-2.0
// All reductions in one order.
#include "harness/fuzz/shrink/smaller.h"

#include "harness/fuzz/shrink/reductions.h"

namespace lockstep::harness::fuzz {

const std::vector<Reduction>& reductions() {
  static const std::vector<Reduction> all = {
      {"schedule", reduce_schedule}, {"entries", reduce_entries},
      {"ranks", reduce_ranks},       {"steps", reduce_steps},
      {"window", reduce_window},     {"model", reduce_model},
      {"blocks", reduce_blocks},     {"options", reduce_options},
      {"sizes", reduce_sizes},       {"kinds of blocks", reduce_block_kinds},
      {"places", reduce_places},     {"numbers", reduce_numbers},
      {"runs", reduce_runs},
  };
  return all;
}

std::vector<Case> smaller(const Case& value) {
  Candidates candidates(value);
  for (const Reduction& reduction : reductions()) {
    reduction.propose(candidates);
  }
  return candidates.take();
}

std::vector<Case> smaller(const Case& value, const Reduction& reduction) {
  Candidates candidates(value);
  reduction.propose(candidates);
  return candidates.take();
}

}  // namespace lockstep::harness::fuzz
