// SPDX-License-Identifier: Apache-2.0
// Text from anywhere, made safe for terminals, XML and shells.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::harness {

/// The same text with everything replaced that XML 1.0 forbids or a terminal could act on: control
/// characters except newline and tab become `\x1b`, bytes that are not UTF-8 and non-characters
/// become U+FFFD. Text without any of these is returned as it is.
std::string printable(std::string_view text);

/// `printable` text whose lines after the first start with `indent`.
std::string indented(std::string_view text, std::string_view indent);

/// One word for a POSIX shell; quoted only if it has to be.
std::string shell_word(std::string_view text);

/// "rank 3", "ranks 0-2, 5" for ascending ranks; "no rank" for none.
std::string rank_list(const std::vector<std::int64_t>& ranks);

/// "SIGSEGV (signal 11)".
std::string signal_name(int signal);

}  // namespace lockstep::harness
