// SPDX-License-Identifier: Apache-2.0
// The two checks: one for what callers hand in, one for what must hold inside.
#pragma once

#include <fmt/format.h>

#include "core/error.h"

/// Throws UsageError with a formatted message unless `cond` holds.
#define LOCKSTEP_USAGE(cond, ...)                             \
  do {                                                        \
    if (!(cond)) {                                            \
      throw ::lockstep::UsageError(fmt::format(__VA_ARGS__)); \
    }                                                         \
  } while (false)

/// Throws InvariantError with a formatted message unless `cond` holds; on in every build.
#define LOCKSTEP_CHECK(cond, ...)                                                               \
  do {                                                                                          \
    if (!(cond)) {                                                                              \
      throw ::lockstep::InvariantError(fmt::format("{}:{}: {} does not hold: {}", __FILE__,     \
                                                   __LINE__, #cond, fmt::format(__VA_ARGS__))); \
    }                                                                                           \
  } while (false)
