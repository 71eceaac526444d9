// SPDX-License-Identifier: Apache-2.0
// Collectives that go wrong on purpose.
#include "harness/sync/faulty_communicator.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/error.h"

namespace lockstep::harness {
namespace {

// More than are ever in flight at once in a scenario.
constexpr std::size_t kIssuedMax = 1024;

class DoneWork final : public Work {
 public:
  void wait() override {}
};

// One of several owners.
class SharedWork final : public Work {
 public:
  explicit SharedWork(std::shared_ptr<Work> work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }

 private:
  std::shared_ptr<Work> work_;
};

// Something happens when the collective is over, once.
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

// Fails at once, each time, if it is so when it is waited for.
class FailingWork final : public Work {
 public:
  FailingWork(std::unique_ptr<Work> work, std::function<bool()> fails, std::string text)
      : work_(std::move(work)), fails_(std::move(fails)), text_(std::move(text)) {}
  void wait() override {
    if (fails_()) {
      throw PeerLost(text_);
    }
    work_->wait();
  }

 private:
  std::unique_ptr<Work> work_;
  std::function<bool()> fails_;
  std::string text_;
};

void turn_a_bit_over(const at::Tensor& tensor) {
  *static_cast<std::uint8_t*>(tensor.data_ptr()) ^= 1;
}

WaitingIn waiting_in(const CollectiveRecord& record, std::size_t seq) {
  WaitingIn waiting;
  waiting.collective = record.collective;
  waiting.site = record.site;
  waiting.seq = static_cast<std::int64_t>(seq);
  waiting.step = record.step;
  waiting.bucket = record.bucket;
  waiting.numel = record.numel;
  waiting.dtype = record.dtype;
  return waiting;
}

}  // namespace

/// A collective on its way to the transport.
struct FaultyCommunicator::Call {
  CollectiveTag tag;
  at::Tensor sent;    ///< what this rank contributes; undefined: nothing
  at::Tensor result;  ///< where the result will be; undefined: nowhere
  /// Issues it with another tensor in the place of `sent`.
  std::function<std::unique_ptr<Work>(const at::Tensor& sent)> issue;
};

/// A collective whose turn comes later.
class FaultyCommunicator::HeldBack {
 public:
  explicit HeldBack(std::function<std::unique_ptr<Work>()> issue) : issue_(std::move(issue)) {}
  bool is_issued() const { return work_ != nullptr; }
  void issue() {
    if (!is_issued()) {
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

FaultyCommunicator::FaultyCommunicator(RecordingCommunicator& inner, Disturbances& disturbances)
    : inner_(inner),
      disturbances_(disturbances),
      keeps_issued_(std::any_of(disturbances.value().faults.begin(),
                                disturbances.value().faults.end(), [](const FaultSpec& fault) {
                                  return is_process_fault(fault.kind) && !site_of(fault).empty();
                                })) {}

FaultyCommunicator::~FaultyCommunicator() = default;

CollectiveTag FaultyCommunicator::tag_of(CollectiveTag tag) const {
  if (tag.site == CallSite::kScript) {
    tag.step = disturbances_.step_of(tag);
  }
  return tag;
}

// Those that were waited for meanwhile have been issued in their turn.
void FaultyCommunicator::issue_held_back() {
  for (const auto& held : std::exchange(held_back_, {})) {
    held->issue();
  }
}

std::unique_ptr<Work> FaultyCommunicator::hold_back(const Call& call, std::size_t fault) {
  const std::size_t seq = inner_.records().size();
  const auto issue = [this, call, fault, seq] {
    if (inner_.records().size() > seq) {
      disturbances_.note_fault(fault);
    }
    return call.issue(call.sent);
  };
  held_back_.push_back(std::make_shared<HeldBack>(issue));
  return std::make_unique<HeldBack::Handle>(held_back_.back());
}

// Errors in what is issued; null if the fault is none of them or has no effect here.
std::unique_ptr<Work> FaultyCommunicator::issue_wrong(const Call& call, std::size_t fault) {
  const std::string& kind = disturbances_.value().faults[fault].kind;
  if (kind == "skip_collective") {
    disturbances_.note_fault(fault);
    return std::make_unique<DoneWork>();
  }
  const bool has_elements = call.sent.defined() && call.sent.numel() > 0;
  if (kind == "wrong_numel" && has_elements) {
    disturbances_.note_fault(fault);
    return call.issue(call.sent.view({-1}).narrow(0, 0, call.sent.numel() - 1));
  }
  if (kind == "wrong_dtype" && has_elements) {
    disturbances_.note_fault(fault);
    return call.issue(call.sent.to(call.sent.scalar_type() == at::kLong ? at::kFloat : at::kLong));
  }
  return nullptr;
}

// What becomes of it when it completes; `work` itself if the fault is about something else.
std::unique_ptr<Work> FaultyCommunicator::complete_wrong(const Call& call, std::size_t fault,
                                                         std::unique_ptr<Work> work) {
  const FaultSpec& spec = disturbances_.value().faults[fault];
  const auto is_due = [this, fault] {
    if (!disturbances_.fault_is_due(fault)) {
      return false;
    }
    disturbances_.note_fault(fault);
    return true;
  };
  if (spec.kind == "transport_error") {
    return std::make_unique<FailingWork>(
        std::move(work), is_due,
        fmt::format("rank {}: the connection broke in a collective ({}, step {}, bucket {})",
                    rank(), to_string(call.tag.site), call.tag.step, call.tag.bucket));
  }
  if (spec.kind == "cut_link") {
    const std::size_t seq = inner_.records().size() - 1;
    const auto stand = [this, is_due, tag = call.tag,
                        waiting = waiting_in(inner_.records()[seq], seq)] {
      if (!is_due()) {
        return;
      }
      const std::int64_t timeout_ms = disturbances_.value().world.timeout_ms;
      if (timeout_ms == 0) {
        throw StandStill(waiting);
      }
      disturbances_.sleep_ms(timeout_ms);
      throw TimedOut(
          fmt::format("rank {}: timed out after {} ms: nothing comes over the link in a collective "
                      "({}, step {}, bucket {})",
                      rank(), timeout_ms, to_string(tag.site), tag.step, tag.bucket));
    };
    return std::make_unique<AfterWork>(std::move(work), stand);
  }
  if (spec.kind == "slow_link") {
    const auto sleep = [this, is_due, delay_ms = spec.delay_ms] {
      disturbances_.sleep_ms(is_due() ? delay_ms : 0);
    };
    return std::make_unique<AfterWork>(std::move(work), sleep);
  }
  if (spec.kind == "corrupt_payload" && call.result.defined() && call.result.nbytes() > 0) {
    const auto corrupt = [is_due, result = call.result] {
      if (is_due()) {
        turn_a_bit_over(result);
      }
    };
    return std::make_unique<AfterWork>(std::move(work), corrupt);
  }
  return work;
}

std::unique_ptr<Work> FaultyCommunicator::issue(const Call& call) {
  const Case& value = disturbances_.value();
  for (const std::size_t event : disturbances_.events_at(call.tag)) {
    disturbances_.carry_out(event);
    if (!value.at[event].collective.empty()) {
      issue_scripted(inner_, value, event, disturbances_.step_of(call.tag));
    }
  }
  const std::optional<std::size_t> fault = disturbances_.fault_at(call.tag);
  const std::string kind = fault ? value.faults[*fault].kind : "";
  if (is_process_fault(kind)) {
    for (const auto& work : std::exchange(issued_, {})) {
      work->wait();
    }
    disturbances_.fail_process(*fault);
  }
  if (kind == "swap_collectives") {
    return hold_back(call, *fault);
  }
  std::unique_ptr<Work> work = fault ? issue_wrong(call, *fault) : nullptr;
  if (work == nullptr) {
    work = call.issue(call.sent);
  }
  if (kind == "skip_wait") {
    disturbances_.note_fault(*fault);
    work = std::make_unique<DoneWork>();
  } else if (fault) {
    work = complete_wrong(call, *fault, std::move(work));
  }
  issue_held_back();
  return keeps_issued_ ? kept(std::move(work)) : std::move(work);
}

std::unique_ptr<Work> FaultyCommunicator::kept(std::unique_ptr<Work> work) {
  if (issued_.size() == kIssuedMax) {
    issued_.erase(issued_.begin());  // ended long ago
  }
  issued_.push_back(std::move(work));
  return std::make_unique<SharedWork>(issued_.back());
}

std::unique_ptr<Work> FaultyCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                     CollectiveTag given) {
  const CollectiveTag tag = tag_of(given);
  return issue({tag, tensor, tensor, [this, op, tag](const at::Tensor& sent) {
                  return inner_.all_reduce(sent, op, tag);
                }});
}

std::unique_ptr<Work> FaultyCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                    CollectiveTag given) {
  const CollectiveTag tag = tag_of(given);
  return issue({tag, tensor, tensor, [this, root, tag](const at::Tensor& sent) {
                  return inner_.broadcast(sent, root, tag);
                }});
}

std::unique_ptr<Work> FaultyCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                     CollectiveTag given) {
  const CollectiveTag tag = tag_of(given);
  return issue({tag, input, output, [this, input, output, tag](const at::Tensor& sent) {
                  const bool is_right = sent.is_same(input);
                  const at::Tensor rows =
                      is_right ? output : at::empty({world_size(), sent.numel()}, sent.options());
                  return inner_.all_gather(rows, sent, tag);
                }});
}

std::unique_ptr<Work> FaultyCommunicator::barrier(CollectiveTag tag) {
  return issue({tag, {}, {}, [this, tag](const at::Tensor&) { return inner_.barrier(tag); }});
}

}  // namespace lockstep::harness
