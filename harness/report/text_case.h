// SPDX-License-Identifier: Apache-2.0
// One case in full, for people.
#pragma once

#include <string>

#include "harness/outcome.h"

namespace lockstep::harness {

struct CaseTextOptions {
  bool colour = false;
  bool every_step = false;     ///< false: long step tables are cut to what matters
  std::string replay_options;  ///< see SuiteInfo::replay_options
  bool command = true;         ///< end with the command that runs the case again
};

/// "256 of 256 schedules, exhaustive".
std::string schedules_text(const ScheduleCount& count);

/// "scenarios/a.toml [ranks=2,seed=3]": what a case is called everywhere.
std::string case_label(const std::string& file, const std::string& name);

/// The command that runs one case again, ready for a shell.
std::string replay_command(const CaseResult& result, const std::string& replay_options);

/// Several lines, each ended: title, outcome, what was not as expected, the steps, the first
/// divergence or how the ranks stand, the cure, and the command that runs the case again.
std::string describe_case(const CaseResult& result, const CaseTextOptions& options);

/// Per step the reference's loss and parameter checksum beside the subject's; empty without steps.
std::string describe_steps(const std::vector<StepSummary>& steps, bool every_step);

}  // namespace lockstep::harness
