// SPDX-License-Identifier: Apache-2.0
// Relations between a script's run and the run of a script that must do the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/executor.h"
#include "harness/outcome.h"

namespace lockstep::harness::fuzz {

/// One relation. Its names are those of the reports.
struct Property {
  const char* name;
  const char* says;              ///< in one sentence, for people
  bool (*applies)(const Case&);  ///< whether it must hold for a script without a mistake
  /// What breaks it; empty where it holds. `subject` is the run of the case itself.
  std::string (*difference)(const Case&, const Run& subject, Executor&);
  /// The other run is of a program that no case compiles to (Executor::takes_changed_programs).
  bool changes_program = false;
};

const std::vector<Property>& properties();

/// Looks at up to `count` of those that apply to the case and executor, chosen by what the case
/// says, so that the same case is always held against the same ones; `count` < 0: all of them.
std::vector<BrokenProperty> broken_properties(const Case& value, Executor& executor,
                                              std::int64_t count);

/// Looks at the one of this name, if it applies.
std::vector<BrokenProperty> broken_property(const Case& value, Executor& executor,
                                            const std::string& name);

}  // namespace lockstep::harness::fuzz
