// SPDX-License-Identifier: Apache-2.0
// ProcessGroupGloo behind the seam.
#include "harness/execute/c10d_gloo_communicator.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <condition_variable>
#include <mutex>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "core/error.h"

namespace lockstep::harness {
namespace {

/// What a group's works share with its communicator; outlives both.
struct InFlight {
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t num_open = 0;
  bool is_abandoned = false;
};

class C10dWork final : public lockstep::Work {
 public:
  C10dWork(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<InFlight> in_flight)
      : future_(work->getFuture()), in_flight_(std::move(in_flight)) {
    {
      const std::lock_guard<std::mutex> lock(in_flight_->mutex);
      ++in_flight_->num_open;
    }
    // On one of the group's threads, or here if the collective has ended already.
    future_->addCallback([open = in_flight_](c10::ivalue::Future&) {
      const std::lock_guard<std::mutex> lock(open->mutex);
      --open->num_open;
      open->changed.notify_all();
    });
  }

  void wait() override {
    {
      std::unique_lock<std::mutex> lock(in_flight_->mutex);
      in_flight_->changed.wait(lock,
                               [this] { return in_flight_->is_abandoned || future_->completed(); });
    }
    if (!future_->completed()) {
      throw CommError("the communicator was given up while this collective was in flight");
    }
    if (future_->hasError()) {
      const std::string message = future_->tryRetrieveErrorMessage();
      if (message.find("imed out") != std::string::npos) {
        throw TimedOut(message);
      }
      throw PeerLost(message);
    }
  }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::shared_ptr<InFlight> in_flight_;
};

class C10dGlooCommunicator final : public Communicator {
 public:
  explicit C10dGlooCommunicator(const C10dGlooOptions& options)
      : rank_(options.rank), world_size_(options.world_size) {
    try {
      const auto store = c10::make_intrusive<c10d::FileStore>(options.directory + "/c10d",
                                                              static_cast<int>(world_size_));
      store->setTimeout(options.connect_timeout);
      const auto group_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
      group_options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
      group_options->threads = 2;  // PyTorch's number
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
          store, static_cast<int>(rank_), static_cast<int>(world_size_), group_options);
    } catch (const std::exception& error) {
      throw PeerLost(
          fmt::format("rank {}: the process group was not made: {}", rank_, error.what()));
    }
  }

  ~C10dGlooCommunicator() override {
    const std::lock_guard<std::mutex> lock(in_flight_->mutex);
    in_flight_->is_abandoned = true;
    in_flight_->changed.notify_all();
    if (in_flight_->num_open > 0) {
      static_cast<void>(group_.release());
    }
  }

  std::int64_t rank() const override { return rank_; }
  std::int64_t world_size() const override { return world_size_; }

  std::unique_ptr<lockstep::Work> all_reduce(at::Tensor tensor, lockstep::ReduceOp op,
                                             CollectiveTag) override {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = op == lockstep::ReduceOp::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    return in_flight(group_->allreduce(tensors, options));
  }

  std::unique_ptr<lockstep::Work> broadcast(at::Tensor tensor, std::int64_t root,
                                            CollectiveTag) override {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return in_flight(group_->broadcast(tensors, options));
  }

  std::unique_ptr<lockstep::Work> all_gather(at::Tensor output, at::Tensor input,
                                             CollectiveTag) override {
    std::vector<std::vector<at::Tensor>> outputs = {output.unbind()};
    std::vector<at::Tensor> inputs = {std::move(input)};
    return in_flight(group_->allgather(outputs, inputs));
  }

  std::unique_ptr<lockstep::Work> barrier(CollectiveTag) override {
    return in_flight(group_->barrier());
  }

 private:
  std::unique_ptr<lockstep::Work> in_flight(c10::intrusive_ptr<c10d::Work> work) {
    return std::make_unique<C10dWork>(std::move(work), in_flight_);
  }

  std::int64_t rank_, world_size_;
  std::shared_ptr<InFlight> in_flight_ = std::make_shared<InFlight>();
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_c10d_gloo_communicator(const C10dGlooOptions& options) {
  return std::make_unique<C10dGlooCommunicator>(options);
}

}  // namespace lockstep::harness
