// SPDX-License-Identifier: Apache-2.0
// Times are given in milliseconds and kept in nanoseconds.
#pragma once

#include <cstdint>

namespace lockstep {

inline constexpr std::int64_t kNsPerMs = 1'000'000;

}  // namespace lockstep
