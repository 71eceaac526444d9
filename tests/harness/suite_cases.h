// SPDX-License-Identifier: Apache-2.0
// Cases for suites whose judge does not look at them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/suite.h"

namespace lockstep::test {

/// Called "0", "1", ...; the seed is the number.
inline std::vector<harness::NamedCase> numbered_cases(std::int64_t count) {
  std::vector<harness::NamedCase> cases(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    cases[i].file = "numbered.toml";
    cases[i].name = std::to_string(i);
    cases[i].value.title = "numbered";
    cases[i].value.expect.outcome = "within_bound";  // a child reads the case as it would a file
    cases[i].value.seed = i;
  }
  return cases;
}

/// The judge to whom every case is as expected; the result is told from others by its trace hash.
inline harness::CaseResult as_expected(const harness::NamedCase& named) {
  harness::CaseResult result;
  result.file = named.file;
  result.name = named.name;
  result.as_expected = true;
  result.trace_hash = named.value.seed * 7;
  return result;
}

inline harness::SuiteOptions jobs(std::int64_t count) {
  harness::SuiteOptions options;
  options.jobs = count;
  return options;
}

}  // namespace lockstep::test
