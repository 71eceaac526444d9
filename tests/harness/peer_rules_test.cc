// SPDX-License-Identifier: Apache-2.0
// The rules that name what PyTorch's reducer does otherwise, held against the scenarios.
#include "harness/judge/peer_rules.h"

#include <gtest/gtest.h>

#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

TEST(PeerRulesTest, NameEveryCaseThatAScenarioTellsOfInEveryVersion) {
  const std::vector<NamedCase> cases = load_scenarios({LOCKSTEP_SCENARIOS_DIR}).cases;
  ASSERT_FALSE(cases.empty());
  for (const LibTorchVersion& version : {LibTorchVersion{1, 13}, {2, 0}, {2, 2}, {2, 14}}) {
    std::size_t num_known = 0;
    for (const NamedCase& named : cases) {
      if (named.value.ddp.peer_can_stand_in() &&
          known_difference(named.value, version) != nullptr) {
        ++num_known;
        EXPECT_NE(why_peer_may_differ(named.value, version), "") << named.file << " " << named.name;
      }
    }
    EXPECT_GT(num_known, 0U);
  }
}

TEST(PeerRulesTest, LeaveMostCasesToBeTheSame) {
  const std::vector<NamedCase> cases = load_scenarios({LOCKSTEP_SCENARIOS_DIR}).cases;
  std::size_t num_named = 0;
  for (const NamedCase& named : cases) {
    num_named += why_peer_may_differ(named.value).empty() ? 0 : 1;
  }
  EXPECT_LT(3 * num_named, cases.size());
  EXPECT_EQ(why_peer_may_differ(Case()), "");
}

TEST(PeerRulesTest, EndWithTheVersionThatMendedThem) {
  Case value;
  value.ddp.static_graph = true;
  value.train.forwards_per_backward = 2;
  EXPECT_NE(why_peer_may_differ(value, {2, 0}), "");
  EXPECT_EQ(why_peer_may_differ(value, {2, 1}), "");
}

}  // namespace
}  // namespace lockstep::harness
