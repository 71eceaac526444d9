// SPDX-License-Identifier: Apache-2.0
// Where a program runs.
#pragma once

#include <memory>

#include "harness/program.h"
#include "harness/run.h"

namespace lockstep::harness {

/// Runs all ranks of a subject and collects what they leave behind. What goes wrong inside a rank
/// is in the Run; an executor throws InvariantError only.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual Run execute(const Program& program) = 0;
};

struct SimExecutorOptions {
  bool keep_trace = false;  ///< fill Run::trace_text
};
std::unique_ptr<Executor> make_sim_executor(const SimExecutorOptions& options = {});

}  // namespace lockstep::harness
