// SPDX-License-Identifier: Apache-2.0
// Contradictions in the places of [[at]] and [[fault]].
#include <gtest/gtest.h>

#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// `body` from line 3 on.
std::string file_with(const std::string& body) {
  return "schema = 1\nexpect.outcome = \"within_bound\"\n" + body;
}

TEST(ScenarioPlaceRulesTest, ACollectiveIsAPlaceOfItsOwn) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nsite = \"bucket\"\nbucket = 1\nstall = true\n")),
              IsEmpty());
  EXPECT_THAT(findings_of(file_with("[[at]]\nbucket = 1\nstall = true\n")),
              ElementsAre(finding("4:1", {"expected site = \"bucket\""})));
  EXPECT_THAT(
      findings_of(file_with("[[at]]\nsite = \"bucket\"\nwhen = \"after_step\"\nstall = true\n")),
      ElementsAre(finding("5:1", {"leave 'when' and 'micro_batch' out, or 'site'"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nsite = \"bucket\"\nlr = 0.5\n")),
              ElementsAre(finding("4:1", {"raise, stall, sleep_ms or issue another collective"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nsite = \"script\"\ncollective = \"barrier\"\n")),
              ElementsAre(finding("4:1", {"never comes to an end"})));
}

TEST(ScenarioPlaceRulesTest, WhatCanNeverBeIsSaidBeforeTheRun) {
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"transport_error\"\nstep = 1\n"
                                    "site = \"module_states\"\n")),
              ElementsAre(finding("5:1", {"belongs to construction", "leave 'step' out"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"wrong_numel\"\nsite = \"used_map\"\n")),
              ElementsAre(finding("5:1", {"nothing is issued", "ddp.find_unused_parameters"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"wrong_numel\"\nsite = \"barrier\"\n")),
              ElementsAre(finding("5:1", {"a barrier carries none"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"stale_gradient\"\nstep = 0\n")),
              ElementsAre(finding("5:1", {"before step 0 there is none"})));
}

TEST(ScenarioPlaceRulesTest, RealTimeIsNoPlace) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nfrom_ms = 5\nstall = true\n")),
              ElementsAre(finding("4:1", {"expected world.simulator_only = true"})));
  for (const char* action :
       {"detach = true", "bypass = true", "keep_gradients = true", "ascend = 1"}) {
    EXPECT_THAT(
        findings_of(file_with(std::string("world.simulator_only = true\n[[at]]\nfrom_ms = 5\n") +
                              action + "\n")),
        ElementsAre(finding("5:1", {"is no matter of time"})))
        << action;
  }
}

TEST(ScenarioPlaceRulesTest, DelaysAndRetriesBelongToWhatTheySlowAndCatch) {
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"slow_link\"\n")),
              ElementsAre(finding("4:1", {"expected it above 0 with kind = \"slow_link\""})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"cut_link\"\ndelay_ms = 5\n")),
              ElementsAre(finding("5:1", {"and with no other"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nstall = true\nretry = true\n")),
              ElementsAre(finding("5:1", {"nothing is", "expected raise"})));
}

TEST(ScenarioPlaceRulesTest, JoinedRanksDoNotAgree) {
  EXPECT_THAT(findings_of(file_with("[train]\nagree = \"before_forward\"\n[ddp]\n"
                                    "join = \"divide_by_initial\"\n")),
              ElementsAre(finding("4:1", {"leave train.agree or ddp.join out"})));
}

TEST(ScenarioPlaceRulesTest, AnExchangeCutsTheBatchIntoEqualChunks) {
  EXPECT_THAT(
      findings_of("schema = 1\nworld.ranks = 3\n[expect]\noracles = [\"ranks\"]\n[model]\n"
                  "kind = \"graph\"\nblocks = { a = \"linear 4 4\", x = \"all_to_all\" }\n"),
      ElementsAre(finding("2:7", {"4 samples", "3 ranks"})));
}

}  // namespace
}  // namespace lockstep::test
