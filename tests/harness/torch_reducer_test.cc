// SPDX-License-Identifier: Apache-2.0
// What PyTorch's reducer does where the catalogue of rules only infers it, and what ours does
// there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>

#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/ddp_sink.h"
#include "core/torch_compat.h"
#include "harness/sync/communicator_process_group.h"
#include "harness/sync/torch_reducer.h"
#include "tests/support/local_communicator.h"
#include "tests/support/run_ranks.h"

namespace lockstep::harness {
namespace {

using test::LocalCommunicator;
using test::run_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct ReducerOptions {
  bool find_unused = false;
  bool static_graph = false;
};

/// The reducer over one rank's parameters, every collective waited for where it is launched.
class Peer {
 public:
  Peer(Communicator& communicator, const std::vector<at::Tensor>& parameters,
       const ReducerOptions& options)
      : find_unused_(options.find_unused),
        group_(c10::make_intrusive<CommunicatorProcessGroup>(
            communicator, ProcessGroupCallbacks{
                              [](CollectiveKind) { return CollectiveTag(); },
                              [](const CollectiveTag&, c10::intrusive_ptr<CommunicatorWork> work) {
                                work->complete();
                              }})) {
    TorchReducerParts parts;
    parts.parameters = parameters;
    parts.expect_sparse.assign(parameters.size(), false);
    std::tie(parts.bucket_indices, parts.per_bucket_size_limits) =
        c10d::compute_bucket_assignment_by_size(parameters, {std::numeric_limits<int>::max()},
                                                parts.expect_sparse);
    parts.group = group_;
    parts.bucket_bytes_cap = parts.first_bucket_bytes_cap = 1 << 20;
    parts.find_unused_parameters = options.find_unused;
    reducer_ = std::make_shared<TorchReducer>(std::move(parts));
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    logger_->set_construction_data_and_log("Peer", {}, -1, true, false, options.static_graph);
    reducer_->set_logger(logger_);
    if (options.static_graph) {
      reducer_->set_static_graph();
    }
  }

  /// One synchronised iteration of a model whose output is `forward()`.
  template <typename Forward>
  void iterate(const Forward& forward) {
    const compat::NoWarnings no_advice;
    logger_->set_runtime_stats_and_log();
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    at::Tensor output = forward();
    reducer_->prepare_for_backward(find_unused_ ? std::vector<at::Tensor>{output}
                                                : std::vector<at::Tensor>());
    if (reducer_->is_static_first()) {
      attach_sink({&output},
                  [this] { compat::queue_callback([this] { reducer_->delay_all_reduce(); }); });
    }
    output.backward();
  }

  TorchReducer& reducer() { return *reducer_; }
  std::int64_t logged(const std::string& field) const {
    return logger_->get_ddp_logging_data().ints_map.at(field);
  }

 private:
  bool find_unused_;
  c10::intrusive_ptr<CommunicatorProcessGroup> group_;
  std::shared_ptr<TorchReducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

/// What a hook was given, bucket by bucket; it leaves gradients as they are.
struct Seen {
  std::vector<std::size_t> indices;
  std::vector<bool> is_last;
  std::vector<at::Tensor> gradients;
};

class SeeingHook final : public c10d::CommHookInterface {
 public:
  explicit SeeingHook(Seen& seen) : seen_(seen) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    seen_.indices.push_back(bucket.getIndex());
    seen_.is_last.push_back(bucket.isLast());
    for (const at::Tensor& gradient : bucket.getGradients()) {
      seen_.gradients.push_back(gradient.clone());
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(at::IValue(bucket.getBuffer()));
    return future;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  Seen& seen_;  // outlives this: lives in the test
};

at::Tensor leaf(const at::Tensor& values) { return values.clone().requires_grad_(); }

TEST(TorchReducerTest, EveryBucketOfTheFirstStaticIterationHasIndexZero) {
  // L4. Two dtypes make two buckets.
  run_ranks(1, [](LocalCommunicator& communicator) {
    const at::Tensor narrow = leaf(at::ones({3}));
    const at::Tensor wide = leaf(at::ones({3}, at::kDouble));
    Peer peer(communicator, {narrow, wide}, {/*find_unused=*/false, /*static_graph=*/true});
    Seen seen;
    peer.reducer().register_comm_hook(std::make_unique<SeeingHook>(seen));
    const auto forward = [&] { return narrow.sum() + wide.sum(); };
    peer.iterate(forward);
    EXPECT_THAT(seen.indices, ElementsAre(0, 0));
    EXPECT_THAT(seen.is_last, ElementsAre(false, false));
    peer.iterate(forward);
    EXPECT_THAT(seen.indices, ElementsAre(0, 0, 0, 1));
    EXPECT_THAT(seen.is_last, ElementsAre(false, false, false, true));
  });
}

TEST(TorchReducerTest, AHooksGradientsOfChannelsLastAreOutOfOrder) {
  // N5. The bucket holds the elements as the parameter's strides say, the view ignores strides.
  run_ranks(1, [](LocalCommunicator& communicator) {
    const at::Tensor factor =
        at::arange(12, at::kFloat).view({1, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor weight = leaf(at::zeros_like(factor, at::MemoryFormat::Preserve));
    ASSERT_EQ(weight.strides(), factor.strides());
    Peer peer(communicator, {weight}, {});
    Seen seen;
    peer.reducer().register_comm_hook(std::make_unique<SeeingHook>(seen));
    peer.iterate([&] { return (weight * factor).sum(); });
    ASSERT_EQ(seen.gradients.size(), 1U);
    EXPECT_TRUE(weight.grad().equal(factor));
    EXPECT_TRUE(seen.gradients[0].is_contiguous());
    EXPECT_FALSE(seen.gradients[0].equal(factor));
    EXPECT_TRUE(seen.gradients[0].flatten().equal(factor.permute({0, 2, 3, 1}).flatten()));
  });
}

TEST(TorchReducerTest, AHookMakesTheDivisorOfTheForwardUseless) {
  // G7. Without a hook gradients are divided by what the forward's work says: here 4.
  for (const bool has_hook : {false, true}) {
    run_ranks(1, [has_hook](LocalCommunicator& communicator) {
      const at::Tensor weight = leaf(at::ones({2}));
      Peer peer(communicator, {weight}, {});
      Seen seen;
      if (has_hook) {
        peer.reducer().register_comm_hook(std::make_unique<SeeingHook>(seen));
      }
      const at::Tensor active = at::full({1}, 4, at::kInt);
      peer.reducer().set_forward_pass_work_handle(
          c10::make_intrusive<CommunicatorWork>(communicator.barrier({}),
                                                std::vector<at::Tensor>{active}),
          /*useStaticWorldSize=*/false);
      peer.iterate([&] { return 8 * weight.sum(); });
      EXPECT_EQ(weight.grad()[0].item<float>(), has_hook ? 8.0F : 2.0F);
    });
  }
}

TEST(TorchReducerTest, TheMapOfAJoinedRankIsThatOfItsLastIteration) {
  // O10. Shadowing an iteration, a joined rank hands over this map; it has used nothing by then.
  run_ranks(1, [](LocalCommunicator& communicator) {
    const at::Tensor used = leaf(at::ones({2}));
    const at::Tensor spare = leaf(at::ones({4}));
    Peer peer(communicator, {used, spare}, {/*find_unused=*/true, /*static_graph=*/false});
    peer.iterate([&] { return used.sum(); });
    const at::Tensor map = peer.reducer().get_local_used_map_on_device();
    EXPECT_EQ(map[0].item<int>(), 1);
    EXPECT_EQ(map[1].item<int>(), 0);
  });
}

TEST(TorchReducerTest, ReadyTwiceNeverBlamesTheSearchForUnusedParameters) {
  // K18, I2. The output is the parameter itself, so the search takes it for unused; that has been
  // noted by the time the hook runs, and the third of the message's reasons is for when it has not.
  run_ranks(1, [](LocalCommunicator& communicator) {
    const at::Tensor level = leaf(at::ones({}));
    Peer peer(communicator, {level}, {/*find_unused=*/true, /*static_graph=*/false});
    try {
      peer.iterate([&] { return level; });
      FAIL() << "the parameter was not ready twice";
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_THAT(message, HasSubstr("mark a variable ready only once"));
      EXPECT_THAT(message, HasSubstr("2) Reused parameters"));
      EXPECT_THAT(message, Not(HasSubstr("3)")));
    }
  });
}

TEST(TorchReducerTest, LoggedBytesOfUnusedParametersAddUpAndIterationsLag) {
  // Q1, Q3. `spare` has 16 bytes and is never used; each sample is of the iteration before. The
  // bytes add up in 1.13 and 2.6, and no longer in 2.14.
  run_ranks(1, [](LocalCommunicator& communicator) {
    const at::Tensor used = leaf(at::ones({2}));
    const at::Tensor spare = leaf(at::ones({4}));
    Peer peer(communicator, {used, spare}, {/*find_unused=*/true, /*static_graph=*/false});
    std::vector<std::int64_t> bytes, iterations;
    for (int i = 0; i < 4; ++i) {
      peer.iterate([&] { return used.sum(); });
      if (i > 0) {
        bytes.push_back(peer.logged("unused_parameter_size"));
        iterations.push_back(peer.logged("iteration"));
      }
    }
    if (kLibTorch < LibTorchVersion{2, 14}) {
      EXPECT_THAT(bytes, ElementsAre(16, 32, 48));
    } else {
      EXPECT_THAT(bytes, ElementsAre(16, 16, 16));
    }
    EXPECT_THAT(iterations, ElementsAre(1, 2, 3));
  });
}

}  // namespace
}  // namespace lockstep::harness
