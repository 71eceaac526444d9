// SPDX-License-Identifier: Apache-2.0
// Which options a case has, for a table of the pairs that were tried together.
#pragma once

#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// One option and the values that are told apart: "ranks": "1", "2", "3-4", "5-8".
struct Option {
  const char* name;
  std::vector<const char*> values;
  std::size_t (*value_of)(const Case&);  ///< an index into `values`
};

const std::vector<Option>& options();

}  // namespace lockstep::harness::fuzz
