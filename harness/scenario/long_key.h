// SPDX-License-Identifier: Apache-2.0
// A look at a text before it is parsed, for keys that would be tables too deep to walk through.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "harness/scenario/tree.h"

namespace lockstep::harness {

/// Points in one key; no key of a scenario has half as many.
inline constexpr std::int64_t kMaxKeyPoints = 16;

/// Where a key has more points than that; nothing if none has. toml++ limits brackets alone, and a
/// key of a million points is a table in a table a million deep.
/// Right for any text that toml++ reads, and up to the first mistake of any other.
std::optional<TextPosition> find_long_key(std::string_view text);

}  // namespace lockstep::harness
