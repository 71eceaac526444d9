// SPDX-License-Identifier: Apache-2.0
// Sharding of samples: examples and what holds for all options.
#include "core/distributed_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "core/error.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SamplerOptions in_order(std::int64_t num_samples, std::int64_t world_size, std::int64_t rank) {
  SamplerOptions options;
  options.num_samples = num_samples;
  options.world_size = world_size;
  options.rank = rank;
  options.shuffle = false;
  return options;
}

TEST(DistributedSamplerTest, DealsSamplesLikeCards) {
  EXPECT_THAT(DistributedSampler(in_order(6, 2, 0)).indices(), ElementsAre(0, 2, 4));
  EXPECT_THAT(DistributedSampler(in_order(6, 2, 1)).indices(), ElementsAre(1, 3, 5));
}

TEST(DistributedSamplerTest, PadsByRepeatingFromTheStart) {
  EXPECT_THAT(DistributedSampler(in_order(5, 2, 0)).indices(), ElementsAre(0, 2, 4));
  EXPECT_THAT(DistributedSampler(in_order(5, 2, 1)).indices(), ElementsAre(1, 3, 0));
}

TEST(DistributedSamplerTest, PadsAsOftenAsNeededWhenThereAreFewerSamplesThanRanks) {
  EXPECT_THAT(DistributedSampler(in_order(2, 5, 0)).global_order(), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(DistributedSampler(in_order(2, 5, 3)).indices(), ElementsAre(1));
}

TEST(DistributedSamplerTest, DropsTheTailIfTold) {
  SamplerOptions options = in_order(5, 2, 1);
  options.drop_last = true;
  EXPECT_THAT(DistributedSampler(options).indices(), ElementsAre(1, 3));
  options.num_samples = 1;
  EXPECT_THAT(DistributedSampler(options).indices(), IsEmpty());
}

TEST(DistributedSamplerTest, AnEmptyDataSetGivesNoSamples) {
  EXPECT_THAT(DistributedSampler(in_order(0, 3, 1)).indices(), IsEmpty());
}

TEST(DistributedSamplerTest, TheEpochChangesTheOrderAndNothingElseDoes) {
  SamplerOptions options = in_order(100, 4, 2);
  options.shuffle = true;
  DistributedSampler sampler(options);
  const auto first = sampler.indices();
  EXPECT_EQ(sampler.indices(), first);
  sampler.set_epoch(1);
  EXPECT_NE(sampler.indices(), first);
  sampler.set_epoch(0);
  EXPECT_EQ(sampler.indices(), first);
}

TEST(DistributedSamplerTest, TheSeedChangesTheOrder) {
  SamplerOptions options = in_order(100, 4, 2);
  options.shuffle = true;
  SamplerOptions other = options;
  other.seed = 1;
  EXPECT_NE(DistributedSampler(options).indices(), DistributedSampler(other).indices());
}

TEST(DistributedSamplerTest, RejectsOptionsOutOfRange) {
  EXPECT_THROW(DistributedSampler(in_order(-1, 1, 0)), UsageError);
  EXPECT_THROW(DistributedSampler(in_order(1, 0, 0)), UsageError);
  EXPECT_THROW(DistributedSampler(in_order(1, 2, 2)), UsageError);
  EXPECT_THROW(DistributedSampler(in_order(1, 2, -1)), UsageError);
  EXPECT_THROW(DistributedSampler(in_order(1, 1, 0)).set_epoch(-1), UsageError);
}

std::map<std::int64_t, std::int64_t> times_seen(SamplerOptions options, std::int64_t epoch,
                                                std::int64_t per_rank) {
  std::map<std::int64_t, std::int64_t> seen;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    DistributedSampler sampler(options);
    sampler.set_epoch(epoch);
    const auto mine = sampler.indices();
    RC_ASSERT(static_cast<std::int64_t>(mine.size()) == per_rank);
    for (const std::int64_t index : mine) {
      ++seen[index];
    }
  }
  return seen;
}

SamplerOptions any_options() {
  SamplerOptions options;
  options.num_samples = *rc::gen::inRange<std::int64_t>(0, 60);
  options.world_size = *rc::gen::inRange<std::int64_t>(1, 12);
  options.shuffle = *rc::gen::arbitrary<bool>();
  options.seed = *rc::gen::arbitrary<std::uint64_t>();
  return options;
}

// N samples, W ranks, ceil(N / W) each: the W * ceil(N / W) - N padded ones are spread so evenly
// that no sample is seen more than once more than another.
RC_GTEST_PROP(DistributedSamplerProps, PaddingShowsEverySampleAndEachAtMostOnceMoreThanAnother,
              ()) {
  const SamplerOptions options = any_options();
  const std::int64_t n = options.num_samples;
  const std::int64_t per_rank = (n + options.world_size - 1) / options.world_size;
  const auto seen = times_seen(options, *rc::gen::inRange<std::int64_t>(0, 5), per_rank);
  RC_ASSERT(static_cast<std::int64_t>(seen.size()) == n);
  for (const auto& [index, times] : seen) {
    RC_ASSERT(index >= 0 && index < n);
    const std::int64_t least = per_rank * options.world_size / n;
    RC_ASSERT(times == least || times == least + 1);
  }
}

RC_GTEST_PROP(DistributedSamplerProps, DroppingShowsNoSampleTwiceAndLosesFewerThanAWorld, ()) {
  SamplerOptions options = any_options();
  options.drop_last = true;
  const std::int64_t per_rank = options.num_samples / options.world_size;
  const auto seen = times_seen(options, 0, per_rank);
  RC_ASSERT(static_cast<std::int64_t>(seen.size()) == per_rank * options.world_size);
  for (const auto& [index, times] : seen) {
    RC_ASSERT(times == 1);
  }
}

}  // namespace
}  // namespace lockstep::test
