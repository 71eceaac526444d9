// SPDX-License-Identifier: Apache-2.0
// JSON lines of what a campaign has tried.
#pragma once

#include <fstream>
#include <optional>
#include <string>

#include "harness/case.h"
#include "harness/outcome.h"

namespace lockstep::harness::fuzz {

/// Where a case of a campaign comes from.
struct Origin {
  std::optional<std::uint64_t> index;  ///< of a drawn one; nothing: it was replayed
  std::uint64_t seed = 0;              ///< of the campaign
  std::string file;                    ///< of a replayed one
};

/// One case as one line of JSON, without its end: `index` and `seed`, or `file`; `mode` ("valid" |
/// "broken"); `outcome`; `finding` (its kind; empty: as expected); `seconds`; `ulp` of the first
/// divergence, `worst` distance over its bound, `wait_ns`; `options`, names of what the case has.
/// What there is none of is null.
std::string journal_line(const Origin& origin, const Case& value, const CaseResult& result,
                         const std::string& finding);

/// A file of them, or none. Each line is written before the next case is passed on.
class Journal {
 public:
  /// `path` empty: nothing is written; "-" is the standard output.
  /// Errors: UsageError if it cannot be written.
  explicit Journal(const std::string& path);
  void add(const Origin& origin, const Case& value, const CaseResult& result,
           const std::string& finding);

 private:
  const std::string path_;
  std::ofstream file_;
};

}  // namespace lockstep::harness::fuzz
