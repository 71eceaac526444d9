// SPDX-License-Identifier: Apache-2.0
// Which options a case has, for a table of the pairs that were tried together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// One of the values of an option that are told apart.
struct OptionValue {
  std::string name;
  std::function<bool(const Case&)> has;
  /// Gives a case this value, as far as one setting does; the case may contradict itself then.
  std::function<void(Case&)> put;
};

/// One option: "ranks": "1", "2", "3-4", "5-8". A case may have several values of one ("blocks"),
/// or none of those that are told apart.
struct Option {
  std::string name;
  std::vector<OptionValue> values;
};

const std::vector<Option>& options();

/// "ranks=2", "dtype=float64", ...: all that a case has, in the order of the options.
std::vector<std::string> option_names(const Case& value);

}  // namespace lockstep::harness::fuzz
