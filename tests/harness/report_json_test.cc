// SPDX-License-Identifier: Apache-2.0
// The report for programs, and CaseResult as JSON and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "harness/report/case_json.h"
#include "harness/report/json_report.h"
#include "tests/harness/report_samples.h"
#include "tests/support/golden.h"

namespace lockstep::test {

using namespace harness;

namespace {

template <class T>
T any() {
  return *rc::gen::arbitrary<T>();
}

std::string any_text() { return *rc::gen::string<std::string>(); }

/// Any bit pattern but the payload of NaN, which JSON does not carry.
double any_double() {
  const auto kind = *rc::gen::inRange(0, 6);
  using Limits = std::numeric_limits<double>;
  if (kind == 0) return Limits::quiet_NaN();
  if (kind == 1) return Limits::infinity();
  if (kind == 2) return -Limits::infinity();
  if (kind == 3) return -0.0;
  return any<double>();
}

template <class T, class Make>
std::optional<T> maybe(Make make) {
  return any<bool>() ? std::optional<T>(make()) : std::nullopt;
}

template <class Make>
auto some(Make make) {
  std::vector<decltype(make())> out;
  for (auto count = *rc::gen::inRange(0, 3); count > 0; --count) out.push_back(make());
  return out;
}

/// Text that JSON carries unchanged: what is no UTF-8 would come back replaced.
std::string ascii() { return *rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127)); }

WaitingIn any_waiting() {
  return {ascii(),
          ascii(),
          any<std::int64_t>(),
          any<std::int64_t>(),
          any<std::int64_t>(),
          any<std::int64_t>(),
          ascii(),
          any<std::vector<std::int64_t>>()};
}

IssuedBy any_issued() {
  return {
      {ascii(), ascii(), any<std::int64_t>(), any<std::int64_t>(), ascii(), any<std::int64_t>()},
      any<std::vector<std::int64_t>>()};
}

RankState any_rank() {
  RankState state;
  state.rank = any<std::int64_t>();
  state.ending = *rc::gen::element(Ending::kFinished, Ending::kLeft, Ending::kFailed,
                                   Ending::kWaiting, Ending::kCrashed);
  state.at_step = any<std::int64_t>();
  state.at_phase = ascii();
  state.waiting = maybe<WaitingIn>(any_waiting);
  state.never_ready = some([] {
    return NeverReady{ascii(), any<std::int64_t>(), any<std::int64_t>(), any<std::int64_t>(),
                      ascii()};
  });
  state.error_kind = ascii();
  state.error_message = ascii();
  state.signal = any<int>();
  state.alone = some(ascii);
  return state;
}

Divergence any_divergence() {
  Divergence d;
  d.oracle = ascii();
  d.step = any<std::int64_t>();
  d.phase = ascii();
  d.ranks = any<std::vector<std::int64_t>>();
  d.tensor = ascii();
  d.element = any<std::int64_t>();
  d.expected = ascii();
  d.actual = ascii();
  d.expected_bits = ascii();
  d.actual_bits = ascii();
  d.ulp = any<std::int64_t>();
  d.num_elements_differ = any<std::int64_t>();
  d.causes = some([] { return CauseHypothesis{ascii(), ascii(), any<bool>()}; });
  return d;
}

Outcome any_outcome() {
  Outcome outcome;
  outcome.kind =
      *rc::gen::element(OutcomeKind::kEqual, OutcomeKind::kWithinBound, OutcomeKind::kDiverged,
                        OutcomeKind::kDeadlock, OutcomeKind::kError, OutcomeKind::kCrash);
  outcome.oracles = some(ascii);
  outcome.worst = maybe<Distance>([] {
    return Distance{any_double(), any_double(), any<std::int64_t>(), ascii()};
  });
  outcome.divergence = maybe<Divergence>(any_divergence);
  outcome.ranks = some(any_rank);
  outcome.mismatch = maybe<MismatchInfo>([] {
    return MismatchInfo{any<std::int64_t>(), any<std::int64_t>(), any<std::int64_t>(), ascii(),
                        ascii()};
  });
  outcome.stuck = some([] {
    return StuckCollective{any_waiting(), any<std::vector<std::int64_t>>(), some([] {
                             return Absence{any<std::int64_t>(), ascii()};
                           })};
  });
  outcome.wrong_pairing = maybe<WrongPairing>([] {
    return WrongPairing{any<std::int64_t>(), some(any_issued), any<std::vector<std::int64_t>>(),
                        any<bool>()};
  });
  outcome.diagnoses = some([] { return CauseHypothesis{ascii(), ascii(), any<bool>()}; });
  outcome.cure = maybe<Cure>([] { return Cure{ascii(), ascii()}; });
  outcome.cures_tried = some([] { return TriedCure{ascii(), any<bool>(), ascii()}; });
  outcome.reason = ascii();
  outcome.wait_for_text = ascii();
  outcome.wait_for_dot = ascii();
  return outcome;
}

StepSummary any_step() {
  StepSummary step;
  step.step = any<std::int64_t>();
  step.reference_loss = maybe<double>(any_double);
  step.losses = some(any_double);
  step.reference_checksum = any<std::uint64_t>();
  step.checksums = any<std::vector<std::uint64_t>>();
  return step;
}

CaseResult any_result() {
  CaseResult result;
  result.file = ascii();
  result.name = ascii();
  result.title = ascii();
  result.backend = ascii();
  result.replay_toml = ascii();
  result.outcome = any_outcome();
  result.as_expected = any<bool>();
  result.skipped = any<bool>();
  result.complaints = some(ascii);
  result.steps = some(any_step);
  result.bucket_all_reduces = any<std::int64_t>();
  result.rebuilds = any<std::int64_t>();
  result.trace_hash = any<std::uint64_t>();
  result.equals_simulator = maybe<bool>(any<bool>);
  result.peer = maybe<PeerComparison>([] { return PeerComparison{ascii(), some(ascii), ascii()}; });
  result.internal_error = ascii();
  result.seconds = any_double();
  return result;
}

// Equality, written apart from the code under test. NaN equals NaN; zeros differ by sign.
bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}
bool same(const CauseHypothesis& a, const CauseHypothesis& b);
bool same(const RankState& a, const RankState& b);
bool same(const Divergence& a, const Divergence& b);
bool same(const StepSummary& a, const StepSummary& b);
bool same(const WaitingIn& a, const WaitingIn& b);
bool same(const NeverReady& a, const NeverReady& b);
bool same(const Distance& a, const Distance& b);
bool same(const MismatchInfo& a, const MismatchInfo& b);
bool same(const Cure& a, const Cure& b);
bool same(const PeerComparison& a, const PeerComparison& b);
bool same(const TriedCure& a, const TriedCure& b);
bool same(const Absence& a, const Absence& b);
bool same(const StuckCollective& a, const StuckCollective& b);
bool same(const IssuedBy& a, const IssuedBy& b);
bool same(const WrongPairing& a, const WrongPairing& b);

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) return false;
  }
  return true;
}
template <class T>
bool same(const std::optional<T>& a, const std::optional<T>& b) {
  return a.has_value() == b.has_value() && (!a.has_value() || same(*a, *b));
}

bool same(const CauseHypothesis& a, const CauseHypothesis& b) {
  return a.name == b.name && a.description == b.description && a.exact == b.exact;
}
bool same(const Cure& a, const Cure& b) {
  return a.name == b.name && a.description == b.description;
}
bool same(const TriedCure& a, const TriedCure& b) {
  return a.name == b.name && a.proven == b.proven && a.instead == b.instead;
}
bool same(const Absence& a, const Absence& b) { return a.rank == b.rank && a.instead == b.instead; }
bool same(const StuckCollective& a, const StuckCollective& b) {
  return same(a.collective, b.collective) && a.waiting == b.waiting && same(a.absent, b.absent);
}
bool same(const IssuedBy& a, const IssuedBy& b) {
  return a.collective.collective == b.collective.collective &&
         a.collective.site == b.collective.site && a.collective.step == b.collective.step &&
         a.collective.numel == b.collective.numel && a.collective.dtype == b.collective.dtype &&
         a.collective.bucket == b.collective.bucket && a.ranks == b.ranks;
}
bool same(const WrongPairing& a, const WrongPairing& b) {
  return a.seq == b.seq && same(a.issued, b.issued) && a.nothing == b.nothing &&
         a.is_mixed == b.is_mixed;
}
bool same(const PeerComparison& a, const PeerComparison& b) {
  return a.sync == b.sync && a.differences == b.differences && a.reason == b.reason;
}
bool same(const NeverReady& a, const NeverReady& b) {
  return a.parameter == b.parameter && a.bucket == b.bucket && a.step == b.step &&
         a.micro_batch == b.micro_batch && a.why == b.why;
}
bool same(const MismatchInfo& a, const MismatchInfo& b) {
  return a.seq == b.seq && a.first_rank == b.first_rank && a.second_rank == b.second_rank &&
         a.first == b.first && a.second == b.second;
}
bool same(const Distance& a, const Distance& b) {
  return same(a.observed, b.observed) && same(a.bound, b.bound) && a.step == b.step &&
         a.tensor == b.tensor;
}
bool same(const WaitingIn& a, const WaitingIn& b) {
  return a.collective == b.collective && a.site == b.site && a.seq == b.seq && a.step == b.step &&
         a.bucket == b.bucket && a.numel == b.numel && a.dtype == b.dtype &&
         a.waiting_for == b.waiting_for;
}
bool same(const StepSummary& a, const StepSummary& b) {
  return a.step == b.step && same(a.reference_loss, b.reference_loss) && same(a.losses, b.losses) &&
         a.reference_checksum == b.reference_checksum && a.checksums == b.checksums;
}
bool same(const Divergence& a, const Divergence& b) {
  return a.oracle == b.oracle && a.step == b.step && a.phase == b.phase && a.ranks == b.ranks &&
         a.tensor == b.tensor && a.element == b.element && a.expected == b.expected &&
         a.actual == b.actual && a.expected_bits == b.expected_bits &&
         a.actual_bits == b.actual_bits && a.ulp == b.ulp &&
         a.num_elements_differ == b.num_elements_differ && same(a.causes, b.causes);
}
bool same(const RankState& a, const RankState& b) {
  return a.rank == b.rank && a.ending == b.ending && a.at_step == b.at_step &&
         a.at_phase == b.at_phase && same(a.waiting, b.waiting) &&
         same(a.never_ready, b.never_ready) && a.error_kind == b.error_kind &&
         a.error_message == b.error_message && a.signal == b.signal && a.alone == b.alone;
}
bool same(const Outcome& a, const Outcome& b) {
  return a.kind == b.kind && a.oracles == b.oracles && same(a.worst, b.worst) &&
         same(a.divergence, b.divergence) && same(a.ranks, b.ranks) &&
         same(a.mismatch, b.mismatch) && same(a.stuck, b.stuck) &&
         same(a.wrong_pairing, b.wrong_pairing) && same(a.diagnoses, b.diagnoses) &&
         same(a.cure, b.cure) && same(a.cures_tried, b.cures_tried) && a.reason == b.reason &&
         a.wait_for_text == b.wait_for_text && a.wait_for_dot == b.wait_for_dot;
}
bool same(const CaseResult& a, const CaseResult& b) {
  return a.file == b.file && a.name == b.name && a.title == b.title && a.backend == b.backend &&
         a.replay_toml == b.replay_toml && same(a.outcome, b.outcome) &&
         a.as_expected == b.as_expected && a.skipped == b.skipped && a.complaints == b.complaints &&
         same(a.steps, b.steps) && a.bucket_all_reduces == b.bucket_all_reduces &&
         a.rebuilds == b.rebuilds && a.trace_hash == b.trace_hash &&
         a.equals_simulator == b.equals_simulator && same(a.peer, b.peer) &&
         a.internal_error == b.internal_error && same(a.seconds, b.seconds);
}

std::string json_report() {
  std::ostringstream out;
  feed_samples(*make_json_report(out));
  return out.str();
}

}  // namespace

RC_GTEST_PROP(CaseJsonProps, AResultComesBackAsItWas, ()) {
  const CaseResult result = any_result();
  RC_ASSERT(same(case_result_from_json(case_result_to_json(result)), result));
}

RC_GTEST_PROP(CaseJsonProps, AnyBytesGiveOneLineOfJson, ()) {
  CaseResult result;
  result.title = any_text();
  const std::string text = case_result_to_json(result);
  RC_ASSERT(text.find('\n') == std::string::npos);
  RC_ASSERT(nlohmann::json::accept(text));
}

TEST(CaseJsonTest, RefusesWhatIsNoResult) {
  const std::string good = case_result_to_json(sample_deadlock());
  EXPECT_NO_THROW(case_result_from_json(good));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_THROW(case_result_from_json(""), UsageError);
  EXPECT_THROW(case_result_from_json(good.substr(0, good.size() / 2)), UsageError);
  EXPECT_THROW(case_result_from_json("{}"), UsageError);
  EXPECT_THROW(case_result_from_json(with("\"kind\":\"deadlock\"", "\"kind\":\"dead\"")),
               UsageError);
  EXPECT_THROW(case_result_from_json(with("fedcba9876543210", "fedcba98765432")), UsageError);
  EXPECT_THROW(case_result_from_json(with("fedcba9876543210", "-edcba9876543210")), UsageError);
  EXPECT_THROW(case_result_from_json(with("\"seconds\":0.25", "\"seconds\":\"soon\"")), UsageError);
}

TEST(JsonReportTest, HoldsEverything) { expect_golden("report.json", json_report()); }

TEST(JsonReportTest, IsOneDocumentWithAllCases) {
  const auto document = nlohmann::json::parse(json_report());
  EXPECT_EQ(document.at("schema"), kJsonReportSchema);
  EXPECT_EQ(document.at("cases").size(), all_samples().size());
  EXPECT_EQ(document.at("cases").at(1).at("verdict"), "failed");
  EXPECT_EQ(document.at("cases").at(6).at("verdict"), "defect");
  EXPECT_EQ(document.at("summary").at("failed"), 5);
}

TEST(JsonReportTest, IsValidAndSaysSoWhenASuiteEndsEarly) {
  std::ostringstream out;
  const auto report = make_json_report(out);
  SuiteSummary summary;
  summary.num_cases = 3;
  summary.signal = 15;
  report->begin({});
  report->case_done(sample_deadlock());
  tally(sample_deadlock(), summary);
  report->end(summary);
  const auto document = nlohmann::json::parse(out.str());
  EXPECT_EQ(document.at("cases").size(), 1U);
  EXPECT_EQ(document.at("summary").at("complete"), false);
  EXPECT_EQ(document.at("summary").at("signal"), 15);
}

TEST(JsonReportTest, IsValidWithoutCases) {
  std::ostringstream out;
  const auto report = make_json_report(out);
  report->begin({});
  report->end({});
  EXPECT_EQ(nlohmann::json::parse(out.str()).at("cases").size(), 0U);
}

}  // namespace lockstep::test
