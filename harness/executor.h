// SPDX-License-Identifier: Apache-2.0
// Where a program runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "harness/program.h"
#include "harness/run.h"
#include "harness/subject.h"

namespace lockstep::harness {

/// Runs all ranks of a subject and collects what they leave behind. What goes wrong inside a rank
/// is in the Run; an executor throws InvariantError only.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual Run execute(const Program& program) = 0;
  /// Whether a program is run as it is. Others are compiled anew from their case where they run.
  virtual bool takes_changed_programs() const { return true; }
};

struct SimExecutorOptions {
  bool keep_trace = false;  ///< fill Run::trace_text
  /// About one in so many runs is done twice; a difference in the trace hash is an InvariantError.
  /// 0: none.
  std::uint64_t repeat_one_in = 16;
  std::function<void()> before_repeat;  ///< for tests: called between the two, if given
  Subject subject;                      ///< somebody's own parts, on every rank
};
/// Runs the schedules that `[schedule]` asks for; the Run is that of the first.
std::unique_ptr<Executor> make_sim_executor(const SimExecutorOptions& options = {});

}  // namespace lockstep::harness
