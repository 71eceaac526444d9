// SPDX-License-Identifier: Apache-2.0
// Colours for terminals.
#pragma once

#include <string>
#include <string_view>

#include "harness/report/report.h"

namespace lockstep::harness {

/// True if `fd` is a terminal that wants colour: not TERM=dumb, and NO_COLOR is unset or empty.
bool wants_colour(int fd);

/// The word that starts a case's line, five columns wide: "ok   ", "FAIL ", "skip ", "BUG  ".
std::string verdict_mark(Verdict verdict, bool colour);

/// `text` in bold, if `colour`.
std::string emphasised(std::string_view text, bool colour);

}  // namespace lockstep::harness
