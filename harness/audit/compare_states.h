// SPDX-License-Identifier: Apache-2.0
// Which recorded states are not alike.
#pragma once

#include "harness/audit/audit.h"

namespace lockstep::harness {

/// Fills `difference`, `num_states` and, about steps that only some ranks recorded, `notes`.
void compare_ranks(const std::vector<RankRecord>& records, Audit& result);

/// Fills `from_other_run`, `num_states_of_others` and, about states of one run alone, `notes`.
void compare_runs(const std::vector<RankRecord>& records, const std::vector<RankRecord>& others,
                  Audit& result);

}  // namespace lockstep::harness
