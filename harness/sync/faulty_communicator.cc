// SPDX-License-Identifier: Apache-2.0
// Collectives that go wrong on purpose.
#include "harness/sync/faulty_communicator.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "core/error.h"

namespace lockstep::harness {
namespace {

constexpr const char* kKinds[] = {"skip_wait",      "skip_collective", "swap_collectives",
                                  "wrong_numel",    "wrong_dtype",     "transport_error",
                                  "corrupt_payload"};

class DoneWork final : public Work {
 public:
  void wait() override {}
};

class FailingWork final : public Work {
 public:
  explicit FailingWork(std::string text) : text_(std::move(text)) {}
  void wait() override { throw PeerLost(text_); }

 private:
  std::string text_;
};

// Does something to the result when it has come.
class AfterWork final : public Work {
 public:
  AfterWork(std::unique_ptr<Work> work, std::function<void()> after)
      : work_(std::move(work)), after_(std::move(after)) {}
  void wait() override {
    work_->wait();
    std::exchange(after_, [] {})();
  }

 private:
  std::unique_ptr<Work> work_;
  std::function<void()> after_;
};

void turn_a_bit_over(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.nbytes() > 0) {
    *static_cast<std::uint8_t*>(tensor.data_ptr()) ^= 1;
  }
}

}  // namespace

bool is_collective_fault(const std::string& kind) {
  return std::find(std::begin(kKinds), std::end(kKinds), kind) != std::end(kKinds);
}

/// A collective whose turn comes later.
class FaultyCommunicator::HeldBack {
 public:
  explicit HeldBack(std::function<std::unique_ptr<Work>()> issue) : issue_(std::move(issue)) {}
  void issue() {
    if (work_ == nullptr) {
      work_ = issue_();
    }
  }
  void wait() {
    issue();
    work_->wait();
  }

  class Handle final : public Work {
   public:
    explicit Handle(std::shared_ptr<HeldBack> held) : held_(std::move(held)) {}
    void wait() override { held_->wait(); }

   private:
    std::shared_ptr<HeldBack> held_;
  };

 private:
  std::function<std::unique_ptr<Work>()> issue_;
  std::unique_ptr<Work> work_;
};

FaultyCommunicator::~FaultyCommunicator() = default;

std::string FaultyCommunicator::fault_of(const CollectiveTag& tag) const {
  for (const FaultSpec& fault : faults_) {
    if (is_collective_fault(fault.kind) && covers(fault.ranks, rank()) &&
        covers(fault.steps, tag.step) && fault.site == to_string(tag.site) &&
        fault.bucket.value_or(tag.bucket) == tag.bucket) {
      return fault.kind;
    }
  }
  return {};
}

void FaultyCommunicator::issue_held_back() {
  for (const auto& held : std::exchange(held_back_, {})) {
    held->issue();
  }
}

// `issue(tensor)` issues the collective with `tensor` in the place of the one it is about.
template <typename Issue>
std::unique_ptr<Work> FaultyCommunicator::issue(const CollectiveTag& tag, at::Tensor tensor,
                                                const Issue& issue) {
  const std::string kind = fault_of(tag);
  if (kind == "swap_collectives") {
    held_back_.push_back(std::make_shared<HeldBack>([issue, tensor] { return issue(tensor); }));
    return std::make_unique<HeldBack::Handle>(held_back_.back());
  }
  std::unique_ptr<Work> work;
  if (kind == "skip_collective") {
    work = std::make_unique<DoneWork>();
  } else if (kind == "wrong_numel" && tensor.defined() && tensor.numel() > 0) {
    work = issue(tensor.view({-1}).narrow(0, 0, tensor.numel() - 1));
  } else if (kind == "wrong_dtype" && tensor.defined()) {
    work = issue(tensor.to(at::kLong));
  } else {
    work = issue(tensor);
  }
  issue_held_back();
  if (kind == "skip_wait") {
    return std::make_unique<DoneWork>();
  }
  if (kind == "transport_error") {
    return std::make_unique<FailingWork>(
        fmt::format("rank {}: the connection broke in a collective ({}, step {}, bucket {})",
                    rank(), to_string(tag.site), tag.step, tag.bucket));
  }
  if (kind == "corrupt_payload") {
    return std::make_unique<AfterWork>(std::move(work), [tensor] { turn_a_bit_over(tensor); });
  }
  return work;
}

std::unique_ptr<Work> FaultyCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                     CollectiveTag tag) {
  return issue(tag, std::move(tensor),
               [this, op, tag](const at::Tensor& it) { return inner_.all_reduce(it, op, tag); });
}

std::unique_ptr<Work> FaultyCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                    CollectiveTag tag) {
  return issue(tag, std::move(tensor),
               [this, root, tag](const at::Tensor& it) { return inner_.broadcast(it, root, tag); });
}

std::unique_ptr<Work> FaultyCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                     CollectiveTag tag) {
  // Its sizes belong together, so that it can only be wrong as a whole.
  return issue(tag, output, [this, output, input, tag](const at::Tensor&) {
    return inner_.all_gather(output, input, tag);
  });
}

std::unique_ptr<Work> FaultyCommunicator::barrier(CollectiveTag tag) {
  return issue(tag, {}, [this, tag](const at::Tensor&) { return inner_.barrier(tag); });
}

}  // namespace lockstep::harness
