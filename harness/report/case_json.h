// SPDX-License-Identifier: Apache-2.0
// CaseResult as JSON and back.
#pragma once

#include <string>
#include <string_view>

#include "harness/outcome.h"

namespace lockstep::harness {

/// One line of JSON with every field of the record, by its own name and in its own order, and a
/// `verdict`. Absent optionals are null; checksums are strings of 16 hexadecimal digits; numbers
/// that JSON does not have are the strings "nan", "inf" and "-inf". The only time in it is
/// `seconds`. Bytes that are not UTF-8 become U+FFFD.
std::string case_result_to_json(const CaseResult& result);

/// The record that `case_result_to_json` was given; `verdict` is not read.
/// Errors: UsageError for text that it did not make.
CaseResult case_result_from_json(std::string_view text);

}  // namespace lockstep::harness
