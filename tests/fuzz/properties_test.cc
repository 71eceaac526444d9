// SPDX-License-Identifier: Apache-2.0
// Properties hold for drawn scripts, and each of them notices what breaks it.
#include "harness/fuzz/properties/properties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
// rapidcheck/gtest.h uses GoogleTest's names and must come after it.
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "harness/fuzz/draw/draw.h"
#include "harness/fuzz/properties/invariants.h"
#include "harness/fuzz/properties/run_difference.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = harness::Run;
using ::testing::HasSubstr;

const Property& property(const std::string& name) {
  const auto found = std::find_if(properties().begin(), properties().end(),
                                  [&](const Property& each) { return each.name == name; });
  EXPECT_NE(found, properties().end()) << name;
  return *found;
}

Case case_of(const std::string& toml) {
  return parse_scenario_text(
             "schema = 1\ntitle = \"t\"\n" + toml + "\n[expect]\noracles = [\"ranks\"]\n", "test")
      .front()
      .value;
}

class Properties : public ::testing::Test {
 protected:
  TrainingRun run(const Case& value) { return executor_->execute(compile_subject(value)); }

  // What the property says of `value`, given the run of a case that has something more, or less.
  std::string difference(const std::string& name, const Case& value, const Case& other) {
    EXPECT_TRUE(property(name).applies(value)) << name;
    EXPECT_EQ(property(name).difference(value, run(value), *executor_), "") << name;
    return property(name).difference(value, run(other), *executor_);
  }

  // The same with a mistake that only the subject has.
  std::string with_fault(const std::string& name, const Case& value, const FaultSpec& fault) {
    Case faulty = value;
    faulty.faults.push_back(fault);
    return difference(name, value, faulty);
  }

  std::unique_ptr<Executor> executor_ = make_sim_executor();
};

FaultSpec fault(const std::string& kind) {
  FaultSpec made;
  made.kind = kind;
  return made;
}

// Integers times powers of two: nothing is rounded.
Case exact_case() {
  return case_of(R"(
model = { widths = [8, 4], activation = "identity" }
data = { exact = true }
train = { steps = 2, micro_batches = 2, loss = "dot", optimizer = { lr = 0.125 } }
)");
}

TEST_F(Properties, BucketCapNoticesAPayloadThatIsCorruptedInOneLayout) {
  Case value = case_of("ddp = { bucket_cap_bytes = 1, first_bucket_cap_bytes = 1 }");
  FaultSpec corrupt = fault("corrupt_payload");
  corrupt.ranks = {1};
  corrupt.bucket = 2;
  EXPECT_THAT(with_fault("bucket_cap", value, corrupt),
              HasSubstr("with the default caps: rank 1, step 1"));
  value.world.ranks = 3;  // now the order of additions depends on the layout
  EXPECT_FALSE(property("bucket_cap").applies(value));
}

TEST_F(Properties, GradientViewNoticesAWrongGradient) {
  FaultSpec corrupt = fault("corrupt_gradient");
  corrupt.steps = {1};
  corrupt.parameter = "layer0.bias";
  EXPECT_THAT(
      with_fault("gradient_view", case_of("world.ranks = 4"), corrupt),
      HasSubstr("with gradient_as_bucket_view = true: rank 0, step 1, gradient layer0.bias"));
  EXPECT_FALSE(property("gradient_view").applies(case_of("world.ranks = 3")));
  // A hook with a memory of errors makes something of a frozen parameter's zeros (I7).
  const std::string freezes = "[[at]]\nstep = 1\nfreeze = [\"layer0\"]\n";
  const std::string search = "ddp = { find_unused_parameters = true, hook = \"";
  EXPECT_TRUE(property("gradient_view").applies(case_of(search + "all_reduce\" }\n" + freezes)));
  EXPECT_FALSE(property("gradient_view").applies(case_of(search + "power_sgd\" }\n" + freezes)));
}

TEST_F(Properties, AllReduceHookNoticesAMissingDivision) {
  EXPECT_THAT(with_fault("all_reduce_hook", case_of("world.ranks = 4"), fault("no_division")),
              HasSubstr("with the hook all_reduce: rank 0, step 0, gradient"));
}

TEST_F(Properties, StaticGraphNoticesAForgottenParameter) {
  FaultSpec forgotten = fault("forgotten_parameter");
  forgotten.parameter = "layer1.weight";
  EXPECT_THAT(with_fault("static_graph", case_of(""), forgotten),
              HasSubstr("with static_graph = true: rank 0, step 0, gradient layer1.weight"));
}

TEST_F(Properties, ScheduleNoticesAMissingWait) {
  FaultSpec skip = fault("skip_wait");
  skip.ranks = {1};
  EXPECT_NE(with_fault("schedule", case_of("schedule.policy = \"random\""), skip), "");
}

TEST_F(Properties, RankPermutationNoticesRanksThatHaveTheSameBatches) {
  EXPECT_THAT(with_fault("rank_permutation", case_of(""), fault("same_batches")),
              HasSubstr("with every rank's data and script on the rank below: rank 1, step 0"));
  EXPECT_FALSE(property("rank_permutation").applies(case_of("world.ranks = 3")));
}

TEST_F(Properties, MicroBatchesNoticesAWindowThatIsSynchronisedTooEarly) {
  EXPECT_THAT(with_fault("micro_batches", exact_case(), fault("sync_before_last_micro_batch")),
              HasSubstr("with micro_batches = 1: rank 0, step 0, gradient"));
}

TEST_F(Properties, NoSyncNoticesAWindowThatIsSynchronisedTooEarly) {
  EXPECT_THAT(with_fault("no_sync", exact_case(), fault("sync_before_last_micro_batch")),
              HasSubstr("with sync_on = \"every\": rank 0, step 0, gradient"));
}

// A route that one micro-batch takes is whole only together with the others.
TEST_F(Properties, NoSyncIsNotForWindowsThatAreWholeOnlyTogether) {
  Case value = exact_case();
  AtSpec at;
  at.micro_batch = 0;
  at.skip = {"layer0"};
  value.model.widths = {4, 4, 4};
  value.train.steps = 1;  // of two, numbers would outgrow their significand
  value.at.push_back(at);
  EXPECT_FALSE(property("no_sync").applies(value));
  value.ddp.find_unused_parameters = true;
  EXPECT_TRUE(property("no_sync").applies(value));
}

// The last forward of each backward arms, and by it what only the first used is unused: that is
// ready twice where each micro-batch is reduced (E11), though not in the window's last.
TEST_F(Properties, NoSyncIsNotForWindowsThatDdpNeedNotFollow) {
  const Case value = case_of(R"(
model = { widths = [1, 1] }
train = { steps = 1, micro_batches = 2, forwards_per_backward = 2 }
ddp = { find_unused_parameters = true }
at = [{ micro_batch = 0, forward = 1, skip = ["layer0"] }]
world = { ranks = 1 }
)");
  EXPECT_FALSE(property("no_sync").applies(value));
}

TEST_F(Properties, WorldSizeOneNoticesAStaleGradient) {
  FaultSpec corrupt = fault("corrupt_gradient");
  corrupt.parameter = "layer0.bias";
  EXPECT_THAT(with_fault("world_size_one", case_of("world.ranks = 1"), corrupt),
              HasSubstr("with no wrapper: rank 0, step 0, gradient layer0.bias"));
}

TEST_F(Properties, CollectiveSequenceNoticesARankThatIssuesFewer) {
  const Case value = case_of("");
  TrainingRun subject = run(value);
  EXPECT_EQ(property("collective_sequence").difference(value, subject, *executor_), "");
  subject.ranks[1].collectives.pop_back();
  EXPECT_THAT(property("collective_sequence").difference(value, subject, *executor_),
              HasSubstr("rank 0 issues bucket all_reduce of"));
}

TEST_F(Properties, LaunchOrderNoticesSwappedBuckets) {
  const Case value = case_of("ddp = { bucket_cap_bytes = 1, first_bucket_cap_bytes = 1 }");
  TrainingRun subject = run(value);
  EXPECT_EQ(property("launch_order").difference(value, subject, *executor_), "");
  std::vector<CollectiveRecord>& issued = subject.ranks[1].collectives;
  std::swap(issued.back(), issued[issued.size() - 2]);
  EXPECT_EQ(property("launch_order").difference(value, subject, *executor_),
            "rank 1, step 2: launches [0 1 3 2], not [0 1 2 3]");
}

TEST_F(Properties, LaunchOrderNoticesAMapTooMany) {
  const Case value = case_of("");
  Case with_map = value;
  with_map.ddp.find_unused_parameters = true;
  EXPECT_EQ(difference("launch_order", value, with_map),
            "rank 0, step 0: launches [0 map], not [0]");
}

TEST_F(Properties, LaunchOrderNoticesAMapOfAStaticGraphBehindItsBuckets) {
  const Case value = case_of("ddp = { static_graph = true }");
  TrainingRun subject = run(value);
  EXPECT_EQ(property("launch_order").difference(value, subject, *executor_), "");
  for (CollectiveRecord& record : subject.ranks[1].collectives) {
    if (record.step != 0 || (record.site != "bucket" && record.site != "used_map")) continue;
    record.bucket = record.site == "bucket" ? -1 : 0;
    record.site = record.site == "bucket" ? "used_map" : "bucket";
  }
  EXPECT_EQ(property("launch_order").difference(value, subject, *executor_),
            "rank 1, step 0: launches [0 map], not [map 0]");
}

TEST_F(Properties, DealtSamplesNoticeOtherSamples) {
  // Five samples on two ranks, in batches of two: with padding every rank has three of an epoch.
  const Case value = case_of(
      "data.samples = 5\ndata.shuffle = false\ntrain.batch_per_rank = 2\ntrain.steps = 2\n");
  Program program = compile_subject(value);
  EXPECT_EQ(sampling_difference(value, program), "");
  program.ranks[1].steps[1].micro_batches[0].parts[0].samples = {3, 0};
  EXPECT_EQ(sampling_difference(value, program),
            "rank 1, step 1: trains on samples [3, 0], where epoch 1 deals [1, 3]");
}

TEST_F(Properties, BucketCapsNoticeABucketThatEndsElsewhere) {
  // Weights of 64 bytes and biases of 16, in the order of registration; a cap that is met exactly.
  const std::string model = "model = { widths = [4, 4, 4, 4] }\n";
  for (const char* unused : {"false", "true"}) {
    const std::string ddp =
        std::string("ddp = { find_unused_parameters = ") + unused + ", bucket_cap_bytes = ";
    EXPECT_THAT(
        difference("bucket_caps", case_of(model + ddp + "80 }"), case_of(model + ddp + "81 }")),
        HasSubstr("where caps and order make"))
        << unused;
  }
  Case first = case_of(model + "ddp = { find_unused_parameters = true, bucket_cap_bytes = 80 }");
  TrainingRun reversed = run(first);
  auto plan = *reversed.ranks[1].steps[0].plans[0];
  std::reverse(plan.buckets.begin(), plan.buckets.end());
  reversed.ranks[1].steps[0].plans[0] = std::make_shared<const ReductionPlan>(plan);
  EXPECT_EQ(property("bucket_caps").difference(first, reversed, *executor_),
            "rank 1, step 0: buckets [[0, 1], [2, 3], [4, 5]], where caps and order make [[4, 5], "
            "[2, 3], [0, 1]]");
}

TEST_F(Properties, UnusedUntouchedNoticesAGradientOfWhatNobodyRan) {
  const Case all = case_of(R"(
model = { kind = "graph", blocks = { a = "linear 4 4", b = "linear 4 4", c = "linear 4 4" }, forward = [["a"], ["b", "c"]] }
ddp = { find_unused_parameters = true }
)");
  Case skips = all;
  AtSpec at;
  at.steps = {1};
  at.skip = {"c"};
  skips.at.push_back(at);
  EXPECT_EQ(difference("unused_untouched", skips, all),
            "rank 0, step 1: c.weight, which no rank used, has a gradient");
}

TEST_F(Properties, ReductionWindowNoticesWhatIsOutOfOrder) {
  const Case value = case_of("ddp = { find_unused_parameters = true, bucket_cap_bytes = 1 }");
  const TrainingRun subject = run(value);
  const auto events = events_of(value, subject);
  EXPECT_EQ(window_difference(value, subject, events), "");

  const auto place_of = [&](std::vector<RankEvent>& list, const char* kind) {
    return std::find_if(list.begin(), list.end(),
                        [&](const RankEvent& event) { return event.kind == kind; });
  };
  auto changed = events;
  changed[1].erase(place_of(changed[1], "finalized"));
  EXPECT_EQ(window_difference(value, subject, changed),
            "rank 1, step 0: 1 synchronised backwards, 0 finalized");
  changed = events;
  changed[0].erase(place_of(changed[0], "gradient_ready"));
  EXPECT_THAT(window_difference(value, subject, changed),
              HasSubstr("is launched before parameter"));
  changed = events;
  changed[0].insert(place_of(changed[0], "gradient_ready"),
                    *place_of(changed[0], "gradient_ready"));
  EXPECT_THAT(window_difference(value, subject, changed), HasSubstr("becomes ready twice"));
}

TEST_F(Properties, RebuildOnceNoticesAnotherOrderAndAnotherNumber) {
  const Case value = case_of("");
  TrainingRun subject = run(value);
  auto events = events_of(value, subject);
  EXPECT_EQ(rebuild_difference(value, subject, events), "");
  Case never = value;
  never.ddp.find_unused_parameters = true;
  EXPECT_EQ(rebuild_difference(never, subject, events),
            "rank 0 rebuilds 1 times, in the steps [1], not in []");
  for (RankEvent& event : events[0]) {
    if (event.kind == "gradient_ready") event.index = 3 - event.index;
  }
  EXPECT_EQ(rebuild_difference(value, subject, events),
            "rank 0, step 1: after the rebuild parameters come in the order 3 2 1 0, and became "
            "ready on rank 0 in the order 0 1 2 3");
}

// Runs on which gradients that are views are wrong.
class WrongViews final : public Executor {
 public:
  Run execute(const Program& program) override {
    Program changed = program;
    if (program.value.ddp.gradient_as_bucket_view) {
      changed.value.faults.push_back(fault("corrupt_gradient"));
      changed.value.faults.back().parameter = "layer0.bias";
      for (RankProgram& rank : changed.ranks) {
        for (StepPlan& step : rank.steps) step.faults.push_back(0);
      }
    }
    return inner_->execute(changed);
  }

 private:
  std::unique_ptr<Executor> inner_ = make_sim_executor();
};

TEST_F(Properties, AreLookedAtAllOrAFewThatTheCaseChooses) {
  const Case value = case_of("world.ranks = 2");
  EXPECT_TRUE(broken_properties(value, *executor_, -1).empty());
  WrongViews wrong;
  const auto all = broken_properties(value, wrong, -1);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name, "gradient_view");
  EXPECT_TRUE(broken_properties(value, wrong, 0).empty());
  int num_found = 0;
  for (int seed = 1; seed <= 40; ++seed) {
    Case other = value;
    other.seed = static_cast<std::uint64_t>(seed);
    const std::size_t found = broken_properties(other, wrong, 2).size();
    EXPECT_EQ(broken_properties(other, wrong, 2).size(), found);
    num_found += static_cast<int>(found);
  }
  EXPECT_GT(num_found, 0);  // two of eleven, drawn forty times
  EXPECT_LT(num_found, 40);
  EXPECT_EQ(broken_property(value, wrong, "gradient_view").size(), 1u);
  EXPECT_TRUE(broken_property(value, wrong, "bucket_cap").empty());
  Case mistaken = value;
  mistaken.faults.push_back(fault("no_division"));
  EXPECT_TRUE(broken_properties(mistaken, wrong, -1).empty());
}

// Where processes compile the case that they are handed, ranks cannot change places.
class OwnPrograms final : public Executor {
 public:
  Run execute(const Program& program) override {
    return inner_->execute(compile_subject(program.value));
  }
  bool takes_changed_programs() const override { return takes_; }
  bool takes_ = false;

 private:
  std::unique_ptr<Executor> inner_ = make_sim_executor();
};

TEST_F(Properties, OfChangedProgramsAreLeftOutWhereTheseDoNotRun) {
  const Case value = case_of("world.ranks = 2");
  ASSERT_TRUE(property("rank_permutation").applies(value));
  OwnPrograms own;
  EXPECT_TRUE(broken_properties(value, own, -1).empty());
  own.takes_ = true;
  const auto broken = broken_properties(value, own, -1);
  ASSERT_EQ(broken.size(), 1u);
  EXPECT_EQ(broken[0].name, "rank_permutation");
}

TEST_F(Properties, OfWindowsAreNotForAStaticGraphOfThePeer) {
  Case value = exact_case();
  value.ddp.static_graph = true;
  for (const char* name : {"micro_batches", "no_sync"}) {
    value.ddp.sync = "ddp";
    EXPECT_TRUE(property(name).applies(value)) << name;
    value.ddp.sync = "torch";
    EXPECT_FALSE(property(name).applies(value)) << name;
  }
}

TEST_F(Properties, HoldForDrawnScripts) {
  std::map<std::string, int> num_held;
  int num_exact = 0;
  const bool holds = rc::check("properties hold for drawn scripts", [&] {
    const auto seed = *rc::gen::arbitrary<std::uint64_t>();
    const Case value = draw_script({}, seed, 0);
    num_exact += value.data.exact && !rounded(run(value)) ? 1 : 0;
    for (const Property& each : properties()) {
      num_held[each.name] += each.applies(value) ? 1 : 0;
    }
    const auto broken = broken_properties(value, *executor_, -1);
    for (const BrokenProperty& each : broken) {
      RC_LOG() << each.name << ": " << each.difference << "\n" << print_case(value);
    }
    RC_ASSERT(broken.empty());
  });
  EXPECT_TRUE(holds);
  EXPECT_GT(num_exact, 0);  // where something is rounded the relations of exact cases say nothing
  std::printf("%d scripts were exact\n", num_exact);
  for (const Property& each : properties()) {
    std::printf("%s: held against %d scripts\n", each.name, num_held[each.name]);
  }
}

}  // namespace
}  // namespace lockstep::harness::fuzz
