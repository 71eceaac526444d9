// SPDX-License-Identifier: Apache-2.0
// What a user writes: a synchronisation and a communicator of one's own, each right and wrong.
#include "harness/fuzz/gtest.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "harness/scenario.h"
#include "harness/sync/gradient_sync.h"

namespace my_project {
namespace {

using lockstep::CollectiveTag;
using lockstep::Communicator;
using lockstep::ReduceOp;
using lockstep::Work;
using lockstep::harness::GradientSync;
using lockstep::harness::SyncParts;

// The mean of all gradients with one all_reduce after backward.
class FlatAverage : public GradientSync {
 public:
  explicit FlatAverage(const SyncParts& parts)
      : model_(parts.model), communicator_(*parts.communicator) {}

  void run(const std::function<void()>& loop) override { loop(); }
  void begin_step(std::int64_t) override {}
  std::vector<std::vector<at::Tensor>> forward(
      const std::vector<lockstep::harness::ReplicaInput>& inputs, bool) override {
    return {model_->forward(inputs[0].input, *inputs[0].route)};
  }
  void after_backward(bool sync) override {
    if (!sync) return;
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients, flat;
    for (at::Tensor& parameter : trainable_parameters(*model_).tensors) {  // tied ones once
      if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
      gradients.push_back(parameter.grad());
      flat.push_back(parameter.grad().reshape({-1}));
    }
    at::Tensor sum = at::cat(flat);
    communicator_.all_reduce(sum, ReduceOp::kSum, {})->wait();
    std::int64_t offset = 0;
    for (at::Tensor& gradient : gradients) {
      gradient.copy_(sum.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
      offset += gradient.numel();
    }
    divide(gradients);
  }
  std::shared_ptr<const lockstep::harness::ReductionPlan> plan() const override { return nullptr; }
  lockstep::ReducerState state() const override { return {}; }

 protected:
  virtual void divide(std::vector<at::Tensor>& gradients) {
    for (at::Tensor& gradient : gradients) gradient.div_(communicator_.world_size());
  }

  std::shared_ptr<lockstep::harness::GraphModel> model_;
  Communicator& communicator_;
};

class ForgetsTheLast final : public FlatAverage {
 public:
  using FlatAverage::FlatAverage;

 private:
  void divide(std::vector<at::Tensor>& gradients) override {
    const at::Tensor last = gradients.back();
    gradients.pop_back();
    FlatAverage::divide(gradients);
  }
};

class PassThrough : public Communicator {
 public:
  explicit PassThrough(Communicator& inner) : inner_(inner) {}

  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t world_size() const override { return inner_.world_size(); }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override {
    return inner_.all_reduce(tensor, op, tag);
  }
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root,
                                  CollectiveTag tag) override {
    return inner_.broadcast(tensor, root, tag);
  }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input,
                                   CollectiveTag tag) override {
    return inner_.all_gather(output, input, tag);
  }
  std::unique_ptr<Work> barrier(CollectiveTag tag) override { return inner_.barrier(tag); }

 private:
  Communicator& inner_;
};

class LosesTheThird final : public PassThrough {
 public:
  using PassThrough::PassThrough;

  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override {
    return PassThrough::all_reduce(++num_all_reduces_ == 3 ? tensor.clone() : tensor, op, tag);
  }

 private:
  int num_all_reduces_ = 0;
};

class Fails final : public PassThrough {
 public:
  explicit Fails(Communicator& inner) : PassThrough(inner) {
    throw std::runtime_error("no such device");
  }
};

using lockstep::harness::fuzz::OwnSubject;
using lockstep::harness::fuzz::OwnVerdict;
using ::testing::HasSubstr;

template <typename Sync>
OwnSubject with_sync() {
  OwnSubject subject;
  subject.make_sync = [](const SyncParts& parts) { return std::make_unique<Sync>(parts); };
  return subject;
}

template <typename Own>
OwnSubject with_communicator() {
  OwnSubject subject;
  subject.make_communicator = [](Communicator& inner) { return std::make_unique<Own>(inner); };
  return subject;
}

TEST(GtestGlue, AFlatAverageKeepsTrainingInLockstep) {
  OwnSubject mine;
  mine.make_sync = [](const SyncParts& parts) { return std::make_unique<FlatAverage>(parts); };
  EXPECT_TRUE(keeps_lockstep(mine));
}

TEST(GtestGlue, ACommunicatorThatPassesOnKeepsTrainingInLockstep) {
  EXPECT_TRUE(keeps_lockstep(with_communicator<PassThrough>()));
}

TEST(GtestGlue, AParameterThatIsNotDividedIsFound) {
  OwnSubject mine = with_sync<ForgetsTheLast>();
  mine.seed = 1;
  mine.cases = 100;
  const OwnVerdict verdict = check_lockstep(mine);
  ASSERT_FALSE(verdict.holds);
  EXPECT_THAT(verdict.text, HasSubstr("outcome: diverged"));
  EXPECT_THAT(verdict.text,
              HasSubstr("phase gradient, layer0.bias, ranks 0, 1, seen by the oracle 'serial'"));
  EXPECT_THAT(verdict.text, HasSubstr("times_world_size"));
  EXPECT_THAT(verdict.text, HasSubstr("again: RC_PARAMS=\"seed=1 max_success="));
  EXPECT_EQ(verdict.scenario, R"(schema = 1
title = "Found by fuzzing"

[model]
widths = [1, 1]

[train]
steps = 1
batch_per_rank = 1

[ddp]
sync = "flat"
broadcast_buffers = false

[expect]
outcome = "within_bound"
oracles = ["ranks", "serial"]
)");
  // The file alone shows the same, and is fine with a subject that is.
  EXPECT_FALSE(check_lockstep(mine, verdict.scenario).holds);
  EXPECT_TRUE(keeps_lockstep(with_sync<FlatAverage>(), verdict.scenario));
}

TEST(GtestGlue, AnAllReduceThatDoesNothingIsFound) {
  OwnSubject mine = with_communicator<LosesTheThird>();
  mine.seed = 1;
  mine.cases = 100;
  const OwnVerdict verdict = check_lockstep(mine);
  ASSERT_FALSE(verdict.holds);
  EXPECT_THAT(verdict.text, HasSubstr("outcome: diverged"));
  EXPECT_THAT(verdict.text, HasSubstr("local_over_world_size"));
  EXPECT_THAT(verdict.text, HasSubstr("seen by the oracle 'ranks'"));
  EXPECT_THAT(verdict.scenario, HasSubstr("steps = 1\nbatch_per_rank = 1\n"));
  EXPECT_LT(std::count(verdict.scenario.begin(), verdict.scenario.end(), '\n'), 25);
  EXPECT_FALSE(check_lockstep(mine, verdict.scenario).holds);
  EXPECT_TRUE(keeps_lockstep(with_communicator<PassThrough>(), verdict.scenario));
}

TEST(GtestGlue, WhatCannotBeMadeIsTheRanksFailure) {
  const OwnVerdict verdict = check_lockstep(with_communicator<Fails>());
  ASSERT_FALSE(verdict.holds);
  EXPECT_EQ(verdict.num_cases, 1);
  EXPECT_THAT(verdict.text, HasSubstr("no such device"));

  OwnSubject nothing;
  nothing.make_sync = [](const SyncParts&) { return nullptr; };
  EXPECT_THAT(check_lockstep(nothing).text, HasSubstr("make_sync made nothing on rank 0"));
}

}  // namespace
}  // namespace my_project
