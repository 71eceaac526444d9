// SPDX-License-Identifier: Apache-2.0
// Runs another program to its end and keeps what it says.
#pragma once

#include <string>
#include <vector>

namespace lockstep::test {

struct ProgramResult {
  int exit_status = -1;  ///< 128 + signal for one that died of a signal
  std::string out, err;
};

/// Runs `command` (path and arguments) with no input and waits for it. Its descriptors are pipes,
/// so that it takes none of them for a terminal.
ProgramResult run_program(const std::vector<std::string>& command);

}  // namespace lockstep::test
