// SPDX-License-Identifier: Apache-2.0
// Soundness and expectations of candidates.
#include "harness/fuzz/shrink/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "harness/fuzz/predict/predict.h"
#include "harness/scenario.h"
#include "harness/scenario/schema.h"

namespace lockstep::harness::fuzz {

namespace {

bool is_predicted(const Case& value) {
  Case predicted = value;
  return expect_as_predicted(predicted) && print_case(predicted) == print_case(value);
}

bool ends_badly(const ExpectSpec& expect) {
  return expect.outcome != "equal" && expect.outcome != "within_bound";
}

/// Puts the default in the place of one key of [expect].
class ResetOfOneKey {
 public:
  ResetOfOneKey(ExpectSpec& expect, std::string key) : expect_(expect), key_(std::move(key)) {
    describe(*this, Of<ExpectSpec>{});
  }
  template <class T, class C>
  void field(const char* key, T ExpectSpec::*member, const C&, const char*) {
    if (key == key_) expect_.*member = defaults_.*member;
  }
  template <class T>
  void tables(const char* key, std::vector<T> ExpectSpec::*member, TablesPlace, const char*) {
    if (key == key_) (expect_.*member).clear();
  }

 private:
  ExpectSpec& expect_;
  const std::string key_;
  const ExpectSpec defaults_{};
};

/// Takes off what a finding at `key` ("oracles", "waiting.0.rank") is about.
void loosen(ExpectSpec& expect, const std::string& key) {
  const std::string name = key.substr(0, key.find('.'));
  std::vector<std::string>& oracles = expect.oracles;
  if (name != "oracles" && name != "outcome") {
    ResetOfOneKey(expect, name);
    return;
  }
  const auto serial = std::find(oracles.begin(), oracles.end(), "serial");
  if (serial != oracles.end()) {
    oracles.erase(serial);
    if (oracles.empty()) oracles = {"ranks"};
  } else if (std::find(oracles.begin(), oracles.end(), "replay") != oracles.end()) {
    oracles = {"ranks"};
  }
  if (expect.outcome == "within_bound") expect.outcome = "equal";
}

/// The expectation that `path` ("expect.sim.rank") leads into, and the rest of the path.
std::pair<ExpectSpec*, std::string> find_expectation(Case& value, const std::string& path) {
  const auto behind = [&](const std::string& prefix) {
    const bool leads = path.compare(0, prefix.size(), prefix) == 0;
    return leads ? path.substr(prefix.size()) : std::string();
  };
  if (value.expect_sim && !behind("expect.sim.").empty()) {
    return {&*value.expect_sim, behind("expect.sim.")};
  }
  if (value.expect_gloo && !behind("expect.gloo.").empty()) {
    return {&*value.expect_gloo, behind("expect.gloo.")};
  }
  for (std::size_t i = 0; i < value.expect_torch.size(); ++i) {
    const std::string prefix =
        value.expect_torch.size() == 1 ? "expect.torch." : fmt::format("expect.torch.{}.", i);
    if (!behind(prefix).empty()) return {&value.expect_torch[i], behind(prefix)};
  }
  return {&value.expect, behind("expect.")};
}

}  // namespace

Candidates::Candidates(const Case& value)
    : value_(value), measure_(measure(value)), is_predicted_(is_predicted(value)) {}

bool Candidates::keep_expectation(Case& candidate) const {
  candidate.expect = value_.expect;
  candidate.expect_sim = value_.expect_sim;
  candidate.expect_gloo = value_.expect_gloo;
  candidate.expect_torch = value_.expect_torch;
  // What is to go wrong would otherwise not, and that would be no finding.
  const bool same_plants =
      candidate.at.size() == value_.at.size() && candidate.faults.size() == value_.faults.size();
  if (!same_plants && ends_badly(value_.expect)) return false;
  constexpr int kLoosenedMax = 16;
  for (int i = 0; i < kLoosenedMax; ++i) {
    const std::vector<CaseFinding> findings = check_case(candidate);
    if (findings.empty()) return true;
    for (const CaseFinding& finding : findings) {
      const auto [expect, key] = find_expectation(candidate, finding.keys.front());
      if (key.empty()) return false;
      loosen(*expect, key);
    }
  }
  return false;
}

bool Candidates::give_expectation(Case& candidate) const {
  return is_predicted_ ? expect_as_predicted(candidate) : keep_expectation(candidate);
}

bool Candidates::add(Case candidate) {
  Measure of_candidate = measure(candidate);
  if (!(of_candidate < measure_) || !texts_.insert(std::move(of_candidate.text)).second ||
      !give_expectation(candidate)) {
    return false;
  }
  found_.push_back(std::move(candidate));
  return true;
}

bool Candidates::add(const Edit& edit) {
  Case candidate = value_;
  edit(candidate);
  return add(std::move(candidate));
}

bool Candidates::add_those_that_fit(const std::vector<Edit>& edits, std::size_t begin,
                                    std::size_t end) {
  Case best = value_;
  for (std::size_t i = begin; i < end; ++i) {
    Case candidate = best;
    edits[i](candidate);
    if (give_expectation(candidate)) best = std::move(candidate);
  }
  return add(std::move(best));
}

void Candidates::add_chunks(const std::vector<Edit>& edits) {
  for (std::size_t chunk = edits.size(); chunk >= 1; chunk = chunk == 1 ? 0 : (chunk + 1) / 2) {
    for (std::size_t begin = 0; begin < edits.size(); begin += chunk) {
      const std::size_t end = std::min(edits.size(), begin + chunk);
      const bool added = add([&](Case& candidate) {
        for (std::size_t i = begin; i < end; ++i) edits[i](candidate);
      });
      if (!added && end - begin > 1) add_those_that_fit(edits, begin, end);
    }
  }
}

}  // namespace lockstep::harness::fuzz
