// SPDX-License-Identifier: Apache-2.0
// Which cases of the loaded files run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "harness/suite.h"

namespace lockstep::test {

using namespace harness;
using ::testing::ElementsAre;

namespace {

NamedCase make_case(const std::string& file, const std::string& name, std::uint64_t seed = 1) {
  NamedCase named;
  named.file = file;
  named.name = name;
  named.value.seed = seed;
  named.value.expect.outcome = "within_bound";  // what any sync may promise
  return named;
}

std::vector<std::string> labels(const std::vector<NamedCase>& cases) {
  std::vector<std::string> out;
  for (const NamedCase& named : cases) out.push_back(named.file + " " + named.name);
  return out;
}

const std::vector<NamedCase> kCases = {
    make_case("a.toml", "ranks=2,seed=1", 1), make_case("a.toml", "ranks=2,seed=2", 2),
    make_case("a.toml", "ranks=4,seed=1", 1), make_case("a.toml", "ranks=4,seed=2", 2),
    make_case("b.toml", "", 5)};

}  // namespace

TEST(SelectionTest, EverythingIsTheDefault) {
  EXPECT_EQ(labels(select_cases(kCases, {})), labels(kCases));
}

TEST(SelectionTest, TheFilterLooksIntoFileAndName) {
  Selection selection;
  selection.filter = "a\\.toml \\[ranks=4";
  EXPECT_THAT(labels(select_cases(kCases, selection)),
              ElementsAre("a.toml ranks=4,seed=1", "a.toml ranks=4,seed=2"));
  selection.filter = "^b";
  EXPECT_THAT(labels(select_cases(kCases, selection)), ElementsAre("b.toml "));
  selection.filter = "nothing";
  EXPECT_THAT(select_cases(kCases, selection), ElementsAre());
}

TEST(SelectionTest, ASeedReplacesAllAndCasesThatBecomeTheSameAreOne) {
  Selection selection;
  selection.seed = 9;
  const std::vector<NamedCase> cases = select_cases(kCases, selection);
  EXPECT_THAT(labels(cases),
              ElementsAre("a.toml ranks=2,seed=9", "a.toml ranks=4,seed=9", "b.toml "));
  for (const NamedCase& named : cases) EXPECT_EQ(named.value.seed, 9U);
}

TEST(SelectionTest, ASyncReplacesAll) {
  Selection selection;
  selection.sync = "flat";
  for (const NamedCase& named : select_cases(kCases, selection)) {
    EXPECT_EQ(named.value.ddp.sync, "flat");
  }
}

#ifdef LOCKSTEP_WITH_TORCH_REDUCER
TEST(SelectionTest, TorchReplacesOurDdpOnly) {
  Selection selection;
  selection.sync = "torch";
  std::vector<NamedCase> cases = kCases;
  cases.front().value.ddp.sync = "flat";
  std::vector<std::string> syncs;
  for (const NamedCase& named : select_cases(cases, selection)) {
    syncs.push_back(named.value.ddp.sync);
  }
  std::vector<std::string> expected(cases.size(), "torch");
  expected.front() = "flat";
  EXPECT_EQ(syncs, expected);
}
#else
TEST(SelectionTest, TorchIsRefusedWhereItWasNotBuilt) {
  Selection selection;
  selection.sync = "torch";
  EXPECT_THROW(select_cases(kCases, selection), UsageError);
}
#endif

TEST(SelectionTest, RefusesWhatCannotBe) {
  Selection selection;
  selection.filter = "(";
  EXPECT_THROW(select_cases(kCases, selection), UsageError);
  selection = {};
  selection.sync = "telepathy";
  EXPECT_THROW(select_cases(kCases, selection), UsageError);
  for (const auto& [shard, num_shards] : {std::pair(0, 2), {3, 2}, {1, 0}, {-1, -1}}) {
    selection = {};
    selection.shard = shard;
    selection.num_shards = num_shards;
    EXPECT_THROW(select_cases(kCases, selection), UsageError);
  }
}

RC_GTEST_PROP(SelectionProps, ShardsAreAPartition, ()) {
  const auto num_cases = *rc::gen::inRange(0, 40);
  const auto num_shards = *rc::gen::inRange(1, 12);
  std::vector<NamedCase> cases;
  for (int i = 0; i < num_cases; ++i) cases.push_back(make_case("f", std::to_string(i)));
  std::vector<std::string> seen;
  for (int shard = 1; shard <= num_shards; ++shard) {
    Selection selection;
    selection.shard = shard;
    selection.num_shards = num_shards;
    const auto part = labels(select_cases(cases, selection));
    // Even shares: sizes differ by one at most.
    RC_ASSERT(static_cast<int>(part.size()) >= num_cases / num_shards);
    RC_ASSERT(static_cast<int>(part.size()) <= num_cases / num_shards + 1);
    seen.insert(seen.end(), part.begin(), part.end());
  }
  auto all = labels(cases);
  std::sort(all.begin(), all.end());
  std::sort(seen.begin(), seen.end());
  RC_ASSERT(seen == all);
}

}  // namespace lockstep::test
