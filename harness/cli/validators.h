// SPDX-License-Identifier: Apache-2.0
// Checks of the values of options.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace lockstep::harness::cli {

/// Takes finite numbers above 0. CLI11's own takes "nan", and tells the largest number there is.
inline CLI::Validator above_zero() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool fits =
            CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0;
        return fits ? std::string() : fmt::format("must be a number above 0, not '{}'", text);
      },
      "above 0");
}

}  // namespace lockstep::harness::cli
