// SPDX-License-Identifier: Apache-2.0
// Checks and launches of the simulated ranks.
#include "sim/sim_communicator.h"

#include <c10/core/ScalarType.h>

#include <utility>

#include "core/check.h"
#include "sim/ring_order.h"

namespace lockstep::sim {
namespace {

class SimWork final : public Work {
 public:
  SimWork(CollectiveExchange& exchange, std::int64_t rank, std::int64_t seq)
      : exchange_(exchange), rank_(rank), seq_(seq) {}

  void wait() override { exchange_.wait(rank_, seq_); }

 private:
  CollectiveExchange& exchange_;
  std::int64_t rank_;
  std::int64_t seq_;
};

void check_tensor(const at::Tensor& tensor, CollectiveKind kind) {
  LOCKSTEP_USAGE(tensor.defined(), "{} of an undefined tensor", to_string(kind));
  LOCKSTEP_USAGE(tensor.layout() == at::kStrided && tensor.device().is_cpu(),
                 "{} needs a dense tensor on the CPU", to_string(kind));
  LOCKSTEP_USAGE(tensor.is_contiguous(),
                 "{} of a tensor that is not contiguous: its {} elements "
                 "do not follow each other in memory",
                 to_string(kind), tensor.numel());
}

CollectiveInfo make_info(CollectiveKind kind, const at::Tensor& tensor, CollectiveTag tag) {
  CollectiveInfo info;
  info.kind = kind;
  info.tag = tag;
  info.numel = tensor.numel();
  info.dtype = c10::toString(tensor.scalar_type());
  return info;
}

}  // namespace

std::unique_ptr<Work> SimCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                  CollectiveTag tag) {
  check_tensor(tensor, CollectiveKind::kAllReduce);
  LOCKSTEP_USAGE(is_ring_dtype(tensor.scalar_type()),
                 "all_reduce of {}; Float, Double, Half, BFloat16, Int, Long, Char and Byte can be "
                 "reduced",
                 c10::toString(tensor.scalar_type()));
  CollectiveInfo info = make_info(CollectiveKind::kAllReduce, tensor, tag);
  info.op = op;
  return launch({std::move(info), std::move(tensor), {}});
}

std::unique_ptr<Work> SimCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                 CollectiveTag tag) {
  check_tensor(tensor, CollectiveKind::kBroadcast);
  LOCKSTEP_USAGE(root >= 0 && root < world_size_, "broadcast from rank {} of {} ranks", root,
                 world_size_);
  CollectiveInfo info = make_info(CollectiveKind::kBroadcast, tensor, tag);
  info.root = root;
  return launch({std::move(info), std::move(tensor), {}});
}

std::unique_ptr<Work> SimCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                  CollectiveTag tag) {
  check_tensor(output, CollectiveKind::kAllGather);
  check_tensor(input, CollectiveKind::kAllGather);
  LOCKSTEP_USAGE(output.scalar_type() == input.scalar_type(), "all_gather of {} into {}",
                 c10::toString(input.scalar_type()), c10::toString(output.scalar_type()));
  LOCKSTEP_USAGE(output.dim() >= 1 && output.size(0) == world_size_ &&
                     output.numel() == world_size_ * input.numel(),
                 "all_gather of {} elements from {} ranks needs an output of that many rows, not "
                 "one of {} elements",
                 input.numel(), world_size_, output.numel());
  CollectiveInfo info = make_info(CollectiveKind::kAllGather, input, tag);
  return launch({std::move(info), std::move(output), std::move(input)});
}

std::unique_ptr<Work> SimCommunicator::barrier(CollectiveTag tag) {
  CollectiveInfo info;
  info.kind = CollectiveKind::kBarrier;
  info.tag = tag;
  return launch({std::move(info), {}, {}});
}

std::unique_ptr<Work> SimCommunicator::launch(Contribution contribution) {
  const std::int64_t seq = exchange_.post(rank_, std::move(contribution));
  return std::make_unique<SimWork>(exchange_, rank_, seq);
}

}  // namespace lockstep::sim
