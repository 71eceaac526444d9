// SPDX-License-Identifier: Apache-2.0
// Comparison with a file under tests/golden/, byte for byte.
#pragma once

#include <string>

namespace lockstep::test {

/// Expects `actual` to be the bytes of tests/golden/`name`. With LOCKSTEP_UPDATE_GOLDEN=1 in the
/// environment the file is written instead, to be looked at and committed, and the test still
/// fails, so that no run passes by writing its own expectation.
void expect_golden(const std::string& name, const std::string& actual);

}  // namespace lockstep::test
