// SPDX-License-Identifier: Apache-2.0
// Rendezvous of ranks in memory.
#include "tests/support/local_communicator.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace lockstep::test {
namespace {

class LocalWork : public Work {
 public:
  LocalWork(std::shared_ptr<LocalGroup> group, std::int64_t rank, std::int64_t seq)
      : group_(std::move(group)), rank_(rank), seq_(seq) {}
  void wait() override { group_->wait(rank_, seq_); }

 private:
  std::shared_ptr<LocalGroup> group_;
  std::int64_t rank_;
  std::int64_t seq_;
};

}  // namespace

std::string to_string(const CollectiveRecord& record) {
  return fmt::format("{} {} {} step {}: {} {}", lockstep::to_string(record.kind),
                     lockstep::to_string(record.tag.site), record.tag.bucket, record.tag.step,
                     record.numel, c10::toString(record.dtype));
}

LocalGroup::LocalGroup(std::int64_t world_size)
    : world_size_(world_size),
      num_posted_(static_cast<std::size_t>(world_size), 0),
      left_(static_cast<std::size_t>(world_size), false) {}

std::int64_t LocalGroup::post(std::int64_t rank, Operation operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::int64_t seq = num_posted_.at(static_cast<std::size_t>(rank))++;
  Meeting& meeting = meetings_[seq];
  meeting.arrived.resize(static_cast<std::size_t>(world_size_));
  meeting.arrived[static_cast<std::size_t>(rank)] =
      std::make_unique<Operation>(std::move(operation));
  if (++meeting.num_arrived == world_size_) {
    complete(meeting);
  }
  changed_.notify_all();
  return seq;
}

void LocalGroup::complete(Meeting& meeting) const {
  const at::NoGradGuard no_grad;
  const Operation& first = *meeting.arrived.front();
  for (const auto& operation : meeting.arrived) {
    if (!(operation->record == first.record) || operation->op != first.op ||
        operation->root != first.root) {
      meeting.desync = fmt::format("ranks disagree: {} and {}", to_string(first.record),
                                   to_string(operation->record));
    }
  }
  meeting.done = true;
  if (!meeting.desync.empty() || first.record.kind == CollectiveKind::kBarrier) {
    return;
  }
  std::vector<at::Tensor> inputs;
  for (const auto& operation : meeting.arrived) {
    inputs.push_back(operation->tensor);
  }
  at::Tensor result;
  if (first.record.kind == CollectiveKind::kAllReduce) {
    result = inputs.front().clone();
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      result = first.op == ReduceOp::kSum ? result + inputs[r] : at::maximum(result, inputs[r]);
    }
  } else if (first.record.kind == CollectiveKind::kBroadcast) {
    result = inputs.at(static_cast<std::size_t>(first.root)).clone();
  } else {
    result = at::stack(inputs);
  }
  for (auto& operation : meeting.arrived) {
    (operation->output.defined() ? operation->output : operation->tensor).copy_(result);
  }
}

void LocalGroup::wait(std::int64_t rank, std::int64_t seq) {
  std::unique_lock<std::mutex> lock(mutex_);
  Meeting& meeting = meetings_.at(seq);
  for (;;) {
    if (meeting.done) {
      if (!meeting.desync.empty()) {
        throw Desync(fmt::format("rank {}, collective {}: {}", rank, seq, meeting.desync));
      }
      return;
    }
    for (std::size_t peer = 0; peer < left_.size(); ++peer) {
      if (left_[peer] && num_posted_[peer] <= seq) {
        throw PeerLost(fmt::format("rank {}, collective {}: rank {} has left", rank, seq, peer));
      }
    }
    changed_.wait(lock);
  }
}

void LocalGroup::leave(std::int64_t rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  left_.at(static_cast<std::size_t>(rank)) = true;
  changed_.notify_all();
}

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalGroup> group, std::int64_t rank)
    : group_(std::move(group)), rank_(rank) {}

std::unique_ptr<Work> LocalCommunicator::post(LocalGroup::Operation operation) {
  if (operation.tensor.defined()) {
    LOCKSTEP_USAGE(operation.tensor.is_contiguous(), "tensor is not contiguous");
    operation.record.numel = operation.tensor.numel();
    operation.record.dtype = operation.tensor.scalar_type();
  }
  log_.push_back(operation.record);
  return std::make_unique<LocalWork>(group_, rank_, group_->post(rank_, std::move(operation)));
}

std::unique_ptr<Work> LocalCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                    CollectiveTag tag) {
  return post({{CollectiveKind::kAllReduce, 0, at::kFloat, tag}, op, -1, std::move(tensor), {}});
}

std::unique_ptr<Work> LocalCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                   CollectiveTag tag) {
  return post({{CollectiveKind::kBroadcast, 0, at::kFloat, tag},
               ReduceOp::kSum,
               root,
               std::move(tensor),
               {}});
}

std::unique_ptr<Work> LocalCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                    CollectiveTag tag) {
  return post({{CollectiveKind::kAllGather, 0, at::kFloat, tag},
               ReduceOp::kSum,
               -1,
               std::move(input),
               std::move(output)});
}

std::unique_ptr<Work> LocalCommunicator::barrier(CollectiveTag tag) {
  return post({{CollectiveKind::kBarrier, 0, at::kFloat, tag}, ReduceOp::kSum, -1, {}, {}});
}

std::int64_t LocalCommunicator::count(CallSite site) const {
  return std::count_if(log_.begin(), log_.end(),
                       [site](const CollectiveRecord& record) { return record.tag.site == site; });
}

}  // namespace lockstep::test
