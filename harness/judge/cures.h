// SPDX-License-Identifier: Apache-2.0
// Changes that would cure a case which ended badly, proven by running it again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/executor.h"
#include "harness/outcome.h"

namespace lockstep::harness {

/// What trying came to.
struct CureSearch {
  std::optional<Cure> cure;      ///< the first that was proven
  std::vector<TriedCure> tried;  ///< in order
};

/// Tries candidate changes on the same schedule, one after the other, until one is proven: every
/// rank finishes, and the ranks agree with each other and with the replay reference of the changed
/// case, bit for bit. Those that would change nothing are passed over. In this order:
///   find_unused_parameters, static_graph   switch the option on
///   join, join_divide_by_active            let ranks without inputs shadow the others
///   evaluate_inner_module                  evaluate without the wrapper
///   broadcast_buffers_off                  leave buffers alone in forward
///   agreed_skip                            all ranks skip the step that one skips or fails in
///   leave_together                         all ranks end with the first that does
///   evaluate_on_all_ranks, collective_on_all_ranks, without_extra_collective
///   run_all_blocks                         no rank leaves blocks out that others run
///   all_ranks                              all ranks do what the scripted disturbances do on some
///   without_fault                          the planted mistakes are left out
/// `also`: the name of one that is tried even if another was proven before; may be empty.
CureSearch find_cures(const Case& value, Executor& simulator, const std::string& also);

}  // namespace lockstep::harness
