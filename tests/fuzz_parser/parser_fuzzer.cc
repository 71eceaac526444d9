// SPDX-License-Identifier: Apache-2.0
// What must hold of any text that is given to the scenario parser; a breach aborts.
//
//   - It becomes cases or studies, or a ScenarioError whose findings are within the text.
//   - No case that comes out has contradictions, and each is printed as text that is read back as
//     the same case.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "harness/scenario.h"
#include "harness/scenario/tree.h"
#include "harness/scenario/variation.h"
#include "tests/fuzz_parser/dictionary.h"

namespace lockstep::harness {

namespace {

// All cases of a file are read alike, so that few of them show what there is to see.
constexpr std::size_t kMaxExpanded = 16;
constexpr std::size_t kMaxRoundTrips = 2;

void demand(bool holds, const char* what, std::string_view about) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n%.*s\n", what, static_cast<int>(about.size()),
               about.data());
  std::abort();
}

void check_findings(const ScenarioError& error, std::string_view text) {
  const std::int64_t lines = 1 + std::count(text.begin(), text.end(), '\n');
  demand(!error.findings().empty(), "a ScenarioError has findings", text);
  for (const Finding& finding : error.findings()) {
    demand(finding.file == "fuzz.toml", "a finding names its file", finding.file);
    demand(!finding.message.empty(), "a finding says something", text);
    demand(finding.line >= 1 && finding.line <= lines && finding.column >= 1,
           "a finding is within the text", to_string(finding));
  }
}

void check_round_trip(const NamedCase& named) {
  const std::vector<CaseFinding> findings = check_case(named.value);
  demand(findings.empty(), "a case that was read has no contradictions",
         findings.empty() ? "" : findings.front().message);
  const std::string text = print_case(named.value);
  try {
    const std::vector<NamedCase> again = parse_scenario_text(text, "again.toml");
    demand(again.size() == 1, "a printed case is one case", text);
    demand(print_case(again.front().value) == text, "a printed case is read back", text);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    demand(false, "a printed case can be read", text);
  }
}

/// Whether the text asks for more cases than are worth the time here. Choosing them is looked at
/// all the same.
bool has_many_cases(std::string_view text) {
  if (text.find("vary") == std::string_view::npos) return false;
  Findings findings("fuzz.toml");
  TreeNode root;
  if (!parse_tree(text, root, findings)) return false;
  const Variation variation = read_variation(root, findings);
  if (!findings.empty()) return false;
  const std::vector<Point> points = choose_points(variation, root, 1, 1, findings);
  demand(points.empty() != findings.empty(), "there are points or there is a finding", text);
  for (const Point& point : points) {
    demand(point.size() == variation.axes.size(), "a point has an index per axis", text);
    for (std::size_t i = 0; i < point.size(); ++i) {
      demand(point[i] < variation.axes[i].values.size(), "a point is one of values", text);
    }
  }
  return points.size() > kMaxExpanded;
}

}  // namespace

void check_text(std::string_view text) {
  if (has_many_cases(text)) return;
  ScenarioSet set;
  try {
    set = parse_text(text, "fuzz.toml");
  } catch (const ScenarioError& error) {
    check_findings(error, text);
    return;
  }
  demand(set.cases.empty() != set.studies.empty(), "a text is a scenario or a timing file", text);
  for (std::size_t i = 0; i < std::min(set.cases.size(), kMaxRoundTrips); ++i) {
    check_round_trip(set.cases[i]);
  }
}

}  // namespace lockstep::harness

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 2 && std::strcmp((*argv)[1], "--dictionary") == 0) {
    std::fputs(lockstep::harness::fuzzer_dictionary().c_str(), stdout);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  lockstep::harness::check_text({reinterpret_cast<const char*>(bytes), num_bytes});
  return 0;
}
