// SPDX-License-Identifier: Apache-2.0
// Options of cases, and which pairs of them were tried.
#include "harness/fuzz/pairs/pair_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "harness/fuzz/draw/draw.h"
#include "harness/fuzz/pairs/options.h"

namespace lockstep::harness::fuzz {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const Pair& pair_of(const std::vector<Pair>& pairs, const std::string& a, const std::string& b) {
  return *std::find_if(pairs.begin(), pairs.end(),
                       [&](const Pair& pair) { return pair.first == a && pair.second == b; });
}

/// Those with these names.
std::vector<Option> only(const std::set<std::string>& names) {
  std::vector<Option> some;
  for (const Option& option : options()) {
    if (names.count(option.name) != 0) some.push_back(option);
  }
  return some;
}

TEST(Options, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Option& option : options()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    std::set<std::string> values;
    for (const OptionValue& value : option.values) {
      EXPECT_TRUE(values.insert(value.name).second) << option.name << "=" << value.name;
    }
  }
  EXPECT_GE(names.size(), 30U);
}

TEST(Options, PuttingAValueGivesIt) {
  for (const Option& option : options()) {
    if (option.name == "mode") continue;  // follows from what else the case has
    for (const OptionValue& value : option.values) {
      Case plain;
      value.put(plain);
      EXPECT_TRUE(value.has(plain)) << option.name << "=" << value.name;
    }
  }
}

TEST(Options, OfAPlainCaseAreItsDefaults) {
  const std::vector<std::string> names = option_names(Case());
  for (const char* name : {"ranks=2", "mode=valid", "model=mlp", "dtype=float32", "exact=off",
                           "optimizer=sgd", "hook=none", "view=off", "inputs=even"}) {
    EXPECT_THAT(names, Contains(name));
  }
}

TEST(PairTable, CountsEveryPairOfACaseOnce) {
  const std::vector<Option> list = only({"ranks", "dtype"});
  PairTable table({}, true, list);
  Case value;
  table.add(value);
  table.add(value);
  value.model.dtype = "float64";
  table.add(value);
  const std::vector<Pair> pairs = table.pairs();
  EXPECT_EQ(pair_of(pairs, "ranks=2", "dtype=float32").count, 2);
  EXPECT_EQ(pair_of(pairs, "ranks=2", "dtype=float64").count, 1);
  EXPECT_EQ(pair_of(pairs, "ranks=2", "dtype=float64").cell, Cell::kTried);
  EXPECT_EQ(pair_of(pairs, "ranks=1", "dtype=float64").count, 0);
}

TEST(PairTable, TellsWhatWasNotTriedFromWhatCannotBe) {
  const std::vector<Option> list = only({"ranks", "mode", "dtype", "fault"});
  PairTable table({}, true, list);
  table.add(draw_script({}, 1, 0));
  const std::vector<Pair> pairs = table.pairs();
  // Nothing keeps many ranks from using doubles.
  EXPECT_EQ(pair_of(pairs, "ranks=5-8", "dtype=float64").cell, Cell::kEmpty);
  // A fault is a mistake.
  EXPECT_EQ(pair_of(pairs, "mode=valid", "fault=no_division").cell, Cell::kExcluded);
  // Outside of 1 to 8 ranks nothing is drawn.
  EXPECT_EQ(pair_of(pairs, "ranks=9-64", "dtype=float64").cell, Cell::kExcluded);
  EXPECT_EQ(count_of(pairs, Cell::kTried) + count_of(pairs, Cell::kEmpty) +
                count_of(pairs, Cell::kExcluded),
            static_cast<std::int64_t>(pairs.size()));
}

TEST(PairTable, OfOneModeLeavesTheOtherOut) {
  const std::vector<Option> list = only({"ranks", "mode"});
  PairTable table({}, false, list);
  table.add(Case());
  EXPECT_EQ(pair_of(table.pairs(), "ranks=2", "mode=broken").cell, Cell::kExcluded);
}

TEST(PairTable, IsShownInShortAndAsCsv) {
  const std::vector<Pair> pairs = {{"a=1", "b=1", 3, Cell::kTried},
                                   {"a=1", "b=2", 0, Cell::kEmpty},
                                   {"a=2", "b=2", 0, Cell::kExcluded}};
  const std::string text = describe_pairs(pairs);
  EXPECT_THAT(text, HasSubstr("1 of 2 tried (50.0 %), 1 empty; 1 more"));
  EXPECT_THAT(text, HasSubstr("3  a=1 with b=1\n"));
  EXPECT_THAT(text, HasSubstr("0  a=1 with b=2\n"));
  EXPECT_EQ(pairs_as_csv(pairs),
            "first,second,count,cell\n\"a=1\",\"b=1\",3,tried\n\"a=1\",\"b=2\",0,empty\n"
            "\"a=2\",\"b=2\",0,excluded\n");
}

}  // namespace
}  // namespace lockstep::harness::fuzz
