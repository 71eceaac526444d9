// SPDX-License-Identifier: Apache-2.0
// The wait-for graph of a result made by hand.
#include "sim/wait_for_graph.h"

#include <gtest/gtest.h>

#include <exception>
#include <stdexcept>

#include "core/error.h"

namespace lockstep::test {
namespace {

sim::WorldResult one_of_each_end() {
  sim::WorldResult result;
  result.deadlock = true;
  result.ranks.resize(4);
  result.ranks[0].end = sim::RankEnd::kWaiting;
  result.ranks[0].waiting_in.emplace();
  result.ranks[0].waiting_in->seq = 3;
  result.ranks[0].waiting_in->kind = CollectiveKind::kAllReduce;
  result.ranks[0].waiting_in->tag = {CallSite::kBucket, 1, 0};
  result.ranks[0].waiting_in->numel = 42;
  result.ranks[0].waiting_in->dtype = "Float";
  result.ranks[0].waiting_for = {1, 2};
  result.ranks[2].end = sim::RankEnd::kFailed;
  result.ranks[2].error = std::make_exception_ptr(std::runtime_error("a \"b\" \\ c\nd"));
  result.ranks[3].end = sim::RankEnd::kFailed;
  result.ranks[3].error = std::make_exception_ptr(7);
  return result;
}

TEST(WaitForGraphTest, HasALinePerRank) {
  EXPECT_EQ(sim::wait_for_text(one_of_each_end()),
            "rank 0 waits in collective 3, all_reduce (bucket 0, step 1, 42 x Float), for ranks "
            "1, 2\n"
            "rank 1 finished\n"
            "rank 2 failed: a \"b\" \\ c\nd\n"
            "rank 3 failed: an exception of unknown type\n");
}

TEST(WaitForGraphTest, IsAGraphvizGraphWithAnEdgePerWait) {
  EXPECT_EQ(
      sim::wait_for_dot(one_of_each_end()),
      "digraph wait_for {\n"
      "  r0 [shape=box, label=\"rank 0\\nwaits in collective 3, all_reduce (bucket 0, step 1, "
      "42 x Float)\"];\n"
      "  r0 -> r1;\n"
      "  r0 -> r2;\n"
      "  r1 [shape=ellipse, label=\"rank 1\\nfinished\"];\n"
      "  r2 [shape=ellipse, label=\"rank 2\\nfailed: a \\\"b\\\" \\\\ c\\nd\"];\n"
      "  r3 [shape=ellipse, label=\"rank 3\\nfailed: an exception of unknown type\"];\n"
      "}\n");
}

TEST(WaitForGraphTest, RefusesAResultThatSaysNotWhatARankWaitsIn) {
  sim::WorldResult result = one_of_each_end();
  result.ranks[0].waiting_in.reset();
  EXPECT_THROW(sim::wait_for_text(result), InvariantError);
}

}  // namespace
}  // namespace lockstep::test
