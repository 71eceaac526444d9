// SPDX-License-Identifier: Apache-2.0
// Kinds of findings, of results that the judge made.
#include "harness/fuzz/shrink/finding.h"

#include <gtest/gtest.h>

#include "harness/judge/judge.h"
#include "harness/scenario.h"
#include "harness/suite.h"

namespace lockstep::harness::fuzz {
namespace {

/// Two ranks and one step of a small model; `text` follows.
CaseResult judged(const std::string& text) {
  static const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = simulator.get();
  options.try_cures = false;
  const std::string file = "schema = 1\n[model]\nwidths = [3, 4, 2]\n" + text;
  return judge_case(parse_scenario_text(file, "test").front(), options);
}

std::string kind_of(const std::string& text) { return finding_kind(judged(text)); }

TEST(Finding, NothingIsFoundWhereACaseIsAsExpected) {
  EXPECT_EQ(kind_of("[expect]\noutcome = \"within_bound\"\n"), "");
  CaseResult skipped;
  skipped.skipped = true;
  EXPECT_EQ(finding_kind(skipped), "");
}

TEST(Finding, WhereTheReferencesOverflowNothingIsFound) {
  const std::string grows =
      "[train]\nsteps = 12\noptimizer = { kind = \"sgd\", lr = 1e6 }\n[expect]\noutcome = "
      "\"within_bound\"\n";
  const CaseResult result = judged(grows);
  EXPECT_FALSE(result.as_expected);
  EXPECT_EQ(result.outcome.divergence->oracle, "serial");
  EXPECT_EQ(finding_kind(result), "");
}

TEST(Finding, AnotherOutcomeIsTheKind) {
  EXPECT_EQ(kind_of("[[fault]]\nkind = \"no_division\"\n[expect]\noutcome = \"within_bound\"\n"),
            "diverged/replay/gradient");
  EXPECT_EQ(kind_of("[[at]]\nrank = 1\nstep = 1\nraise = \"x\"\n[expect]\noutcome = "
                    "\"within_bound\"\n"),
            "deadlock");
  EXPECT_EQ(kind_of("[[at]]\nraise = \"x\"\n[expect]\noutcome = \"within_bound\"\n"),
            "error/script");
  EXPECT_EQ(kind_of("[[fault]]\nkind = \"crash\"\nstep = 1\n[expect]\noutcome = "
                    "\"within_bound\"\n"),
            "crash");
  EXPECT_EQ(kind_of("[expect]\noutcome = \"deadlock\"\n"), "within_bound");
}

TEST(Finding, OtherDetailsOfTheSameOutcomeAreComplaints) {
  const std::string raises = "[[at]]\nrank = 1\nraise = \"x\"\n[expect]\noutcome = \"deadlock\"\n";
  EXPECT_EQ(kind_of(raises), "");
  EXPECT_EQ(kind_of(raises + "waiting = [{ rank = 0, step = 2 }]\n"), "complaint/waiting");
  EXPECT_EQ(kind_of(raises + "waiting = [{ rank = 1 }]\n"), "complaint/waiting");
  EXPECT_EQ(kind_of(raises + "error = \"desync\"\n"), "complaint/error");
  EXPECT_EQ(kind_of(raises + "cause = \"wrong_pairing\"\n"), "complaint/cause");
  EXPECT_EQ(kind_of(raises + "cure = \"join\"\n"), "complaint/cure");
  EXPECT_EQ(kind_of(raises + "never_ready = [{ rank = 1, parameters = [\"layer0.bias\"] }]\n"),
            "complaint/never_ready");
  EXPECT_EQ(kind_of(raises + "issued = [{ step = 2, collectives = [\"bucket 1\"] }]\n"),
            "complaint/issued");
  EXPECT_EQ(kind_of(raises + "ends = [{ rank = 0, ending = \"finished\" }]\n"), "complaint/ends");
  const std::string divides =
      "[[fault]]\nkind = \"no_division\"\n[expect]\noutcome = \"diverged\"\n";
  EXPECT_EQ(kind_of(divides + "step = 1\n"), "complaint/divergence");
  const std::string fine = "[expect]\noutcome = \"within_bound\"\n";
  EXPECT_EQ(kind_of("[[fault]]\nkind = \"exit\"\nbucket = 7\n" + fine), "complaint/planted");
  EXPECT_EQ(kind_of(fine + "rebuilds = 7\n"), "complaint/rebuilds");
  EXPECT_EQ(kind_of(fine + "bucket_all_reduces = 7\n"), "complaint/bucket_all_reduces");
  EXPECT_EQ(kind_of(fine + "values = [{ step = 0, tensor = \"layer0.bias\", numbers = [1.0] }]\n"),
            "complaint/values");
  EXPECT_EQ(kind_of("[schedule]\npolicy = \"replay\"\ndeviations = \"900:1\"\n" + fine),
            "complaint/replay");
}

TEST(Finding, ADefectOfLockstepItselfComesFirst) {
  NamedCase named;
  CaseResult result = undecided(named, "something is wrong");
  EXPECT_EQ(finding_kind(result), "internal_error");
  result.outcome.kind = OutcomeKind::kCrash;
  EXPECT_EQ(finding_kind(result), "internal_error/signal");
  EXPECT_EQ(finding_kind(undecided(named,
                                   "not judged within 1 s (--case-timeout); its process "
                                   "was ended")),
            "internal_error/time");
}

TEST(Finding, WhatThePeerDoesOtherwiseIsTold) {
  CaseResult result;
  result.peer = PeerComparison();
  result.peer->differences = {
      "rank 0, step 1, gradient layer0.bias[0] has 1 3f800000, with torch 2 40000000"};
  result.complaints = result.peer->differences;
  EXPECT_EQ(finding_kind(result), "peer/gradient");
  result.peer->differences = result.complaints = {"rank 0, collective 3 of training issues none"};
  EXPECT_EQ(finding_kind(result), "peer/collectives");
  result.peer->differences = result.complaints = {"rank 0 finished, with torch failed"};
  EXPECT_EQ(finding_kind(result), "peer/ends");
  result.complaints.emplace_back(
      "cases like this are known to differ: a rank uses nothing; if ...");
  EXPECT_EQ(finding_kind(result), "peer/known");
}

TEST(Finding, ABrokenPropertyIsOne) {
  CaseResult result;
  result.as_expected = true;
  result.broken_properties = {{"bucket_cap", "differs"}};
  EXPECT_EQ(finding_kind(result), "property/bucket_cap");
}

TEST(Finding, KnowsThePropertyOfItsKind) {
  EXPECT_EQ(property_of("property/bucket_cap"), "bucket_cap");
  EXPECT_EQ(property_of("deadlock"), "");
  EXPECT_EQ(property_of(""), "");
}

}  // namespace
}  // namespace lockstep::harness::fuzz
