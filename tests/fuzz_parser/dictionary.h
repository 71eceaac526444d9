// SPDX-License-Identifier: Apache-2.0
// Words of scenario and timing files, for a fuzzer that puts bytes together.
#pragma once

#include <string>

namespace lockstep::harness {

/// A dictionary of libFuzzer: every key, table and named value of both schemas, each once, and the
/// kinds of blocks.
std::string fuzzer_dictionary();

}  // namespace lockstep::harness
