// SPDX-License-Identifier: Apache-2.0
// Scenario files: from text to checked cases, and from a case back to text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/libtorch_version.h"
#include "harness/case.h"
#include "harness/timing/study.h"

namespace lockstep::harness {

/// One mistake in one file.
struct Finding {
  std::string file;
  std::int64_t line = 0;    ///< from 1; 0: about the file as a whole
  std::int64_t column = 0;  ///< from 1, in characters; 0: about the file as a whole
  std::string message;      ///< what is wrong; what was expected; nearest known name or way out
};

/// "file:line:column: message", or "file: message".
std::string to_string(const Finding& finding);

/// Every mistake of every file that was looked at; nothing may be run.
class ScenarioError : public UsageError {
 public:
  explicit ScenarioError(std::vector<Finding> findings);

  /// At least one; by file in the order of loading, then by position.
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  std::vector<Finding> findings_;
};

struct ScenarioSet {
  std::int64_t num_files = 0;
  std::vector<NamedCase> cases;      ///< by file in the order of loading, then in axis order
  std::vector<TimingStudy> studies;  ///< timing files (kind = "timing"), in the order of loading
};

/// Reads files, and folders recursively (their *.toml only, in sorted order). A file reached twice
/// is read once.
/// Errors: ScenarioError with the findings of all files.
ScenarioSet load_scenarios(const std::vector<std::string>& paths);

/// Makes all expectations of a case those of every schedule, as where only one is left.
void expect_every_schedule(Case& value);

/// What one text stands for. `file` is the name used in cases, studies and findings.
/// Errors: ScenarioError.
ScenarioSet parse_text(std::string_view text, const std::string& file);

/// The cases of one scenario text. Errors: ScenarioError; UsageError for a timing file.
std::vector<NamedCase> parse_scenario_text(std::string_view text, const std::string& file);

/// A contradiction within a case, with the keys it is about, the most relevant first
/// ("train.micro_batches", "at.0.rank").
struct CaseFinding {
  std::vector<std::string> keys;
  std::string message;
};

/// Contradictions between the values of a case, each of which alone is in range. Empty for every
/// case that came out of a scenario file.
std::vector<CaseFinding> check_case(const Case& value);

/// The case as a scenario without axes: what differs from the defaults, in one canonical order.
/// Reading it back gives the same case, and equal cases print equal text.
/// Precondition: every value is in the range that a scenario file allows (seed below 2^63).
std::string print_case(const Case& value);

/// A commented scenario to start from. Valid as it stands and with any of its disabled keys
/// enabled.
std::string scenario_template(const std::string& title);

/// "2.4" as a version; nothing where the text is not two numbers with a point between them.
std::optional<LibTorchVersion> version_of(std::string_view text);

/// The first [expect.torch] that is about `version`; null: PyTorch's reducer does the same as ours.
/// The pointer lives until `value` changes.
const ExpectSpec* known_difference(const Case& value, LibTorchVersion version = kLibTorch);

/// What is expected on `backend` ("sim", or one of the real ones over Gloo) with the case's own
/// ddp.sync.
const ExpectSpec& expectation(const Case& value, std::string_view backend);

}  // namespace lockstep::harness
