// SPDX-License-Identifier: Apache-2.0
// The known name that a mistyped one was probably meant to be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::harness {

/// Fewest insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, where
/// no character takes part in two of them.
std::int64_t edit_distance(std::string_view a, std::string_view b);

/// The name with the smallest distance, the first of several; none if all are too far off to be a
/// typing mistake (more than a third of the longer name's length, and more than 1).
std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& known);

/// "; did you mean 'NAME'?", or nothing.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace lockstep::harness
