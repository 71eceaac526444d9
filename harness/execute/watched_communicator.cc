// SPDX-License-Identifier: Apache-2.0
// Counting launches and waits on their way to the real communicator.
#include "harness/execute/watched_communicator.h"

#include <torch/types.h>

#include <string>
#include <utility>

#include "core/error.h"

namespace lockstep::harness {

/// Shared with the works, which may outlive the communicator.
class WatchedCommunicator::Ledger {
 public:
  void posted(sim::CollectiveInfo& info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    info.seq = standing_.posted++;
    ++standing_.progress;
  }
  void wait_begins(const sim::CollectiveInfo& info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    standing_.waiting = info;
  }
  void wait_ends(bool failed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failed && !standing_.failed_in) {
      standing_.failed_in = standing_.waiting;
    }
    standing_.waiting.reset();
    ++standing_.progress;
  }
  Standing standing() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return standing_;
  }

 private:
  mutable std::mutex mutex_;
  Standing standing_;
};

class WatchedCommunicator::WatchedWork final : public Work {
 public:
  WatchedWork(std::unique_ptr<Work> inner, sim::CollectiveInfo info, std::shared_ptr<Ledger> ledger)
      : inner_(std::move(inner)), info_(std::move(info)), ledger_(std::move(ledger)) {}

  void wait() override {
    ledger_->wait_begins(info_);
    try {
      inner_->wait();
    } catch (...) {
      ledger_->wait_ends(true);
      throw;
    }
    ledger_->wait_ends(false);
  }

 private:
  std::unique_ptr<Work> inner_;
  sim::CollectiveInfo info_;
  std::shared_ptr<Ledger> ledger_;
};

namespace {

sim::CollectiveInfo info_of(CollectiveKind kind, const CollectiveTag& tag) {
  sim::CollectiveInfo info;
  info.kind = kind;
  info.tag = tag;
  return info;
}

sim::CollectiveInfo info_of(CollectiveKind kind, const CollectiveTag& tag,
                            const at::Tensor& tensor) {
  sim::CollectiveInfo info = info_of(kind, tag);
  info.numel = tensor.numel();
  info.dtype = c10::toString(tensor.scalar_type());
  return info;
}

}  // namespace

WatchedCommunicator::WatchedCommunicator(std::unique_ptr<Communicator> inner)
    : rank_(inner->rank()),
      world_size_(inner->world_size()),
      ledger_(std::make_shared<Ledger>()),
      inner_(std::move(inner)) {}

WatchedCommunicator::~WatchedCommunicator() = default;

template <class Launch>
std::unique_ptr<Work> WatchedCommunicator::launch(sim::CollectiveInfo info,
                                                  const Launch& inner_launch) {
  const std::lock_guard<std::mutex> lock(launch_mutex_);
  if (inner_ == nullptr) {
    throw CommError("the case is over: no further collective can be issued");
  }
  std::unique_ptr<Work> work = inner_launch(*inner_);
  ledger_->posted(info);
  return std::make_unique<WatchedWork>(std::move(work), std::move(info), ledger_);
}

std::unique_ptr<Work> WatchedCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                      CollectiveTag tag) {
  sim::CollectiveInfo info = info_of(CollectiveKind::kAllReduce, tag, tensor);
  info.op = op;
  return launch(std::move(info),
                [&](Communicator& inner) { return inner.all_reduce(tensor, op, tag); });
}

std::unique_ptr<Work> WatchedCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                     CollectiveTag tag) {
  sim::CollectiveInfo info = info_of(CollectiveKind::kBroadcast, tag, tensor);
  info.root = root;
  return launch(std::move(info),
                [&](Communicator& inner) { return inner.broadcast(tensor, root, tag); });
}

std::unique_ptr<Work> WatchedCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                      CollectiveTag tag) {
  return launch(info_of(CollectiveKind::kAllGather, tag, input),
                [&](Communicator& inner) { return inner.all_gather(output, input, tag); });
}

std::unique_ptr<Work> WatchedCommunicator::barrier(CollectiveTag tag) {
  return launch(info_of(CollectiveKind::kBarrier, tag),
                [&](Communicator& inner) { return inner.barrier(tag); });
}

WatchedCommunicator::Standing WatchedCommunicator::standing() const { return ledger_->standing(); }

void WatchedCommunicator::abandon() {
  std::unique_ptr<Communicator> inner;
  {
    const std::lock_guard<std::mutex> lock(launch_mutex_);
    inner = std::move(inner_);
  }
}

}  // namespace lockstep::harness
