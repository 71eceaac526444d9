// SPDX-License-Identifier: Apache-2.0
// c10d's collectives in terms of a Communicator's.
#include "harness/sync/communicator_process_group.h"

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <utility>

#include "core/sparse_all_reduce.h"

namespace lockstep::harness {
namespace {

/// A sum of sparse rows in flight, which ends in `target`.
class SparseWork final : public lockstep::Work {
 public:
  SparseWork(PendingTensor sum, at::Tensor target)
      : sum_(std::move(sum)), target_(std::move(target)) {}

  void wait() override {
    const at::Tensor result = sum_.wait();
    const at::NoGradGuard no_grad;
    target_.copy_(result);
  }

 private:
  PendingTensor sum_;
  at::Tensor target_;
};

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "one tensor per rank, not ", tensors.size());
  return tensors.front();
}

lockstep::ReduceOp reduce_op(const c10d::ReduceOp& op) {
  TORCH_CHECK(op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::MAX,
              "only sums and maxima are reduced");
  return op.op_ == c10d::ReduceOp::SUM ? lockstep::ReduceOp::kSum : lockstep::ReduceOp::kMax;
}

}  // namespace

CommunicatorWork::CommunicatorWork(std::unique_ptr<lockstep::Work> work,
                                   std::vector<at::Tensor> tensors, std::function<void()> finish)
    : work_(std::move(work)),
      tensors_(std::move(tensors)),
      finish_(std::move(finish)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
}

void CommunicatorWork::complete() {
  if (is_complete_) {
    return;
  }
  work_->wait();
  if (finish_) {
    finish_();
  }
  is_complete_ = true;
  future_->markCompleted(at::IValue(tensors_));
}

bool CommunicatorWork::wait(std::chrono::milliseconds) {
  complete();
  return true;
}

CommunicatorProcessGroup::CommunicatorProcessGroup(Communicator& communicator,
                                                   ProcessGroupCallbacks callbacks)
    : c10d::ProcessGroup(static_cast<int>(communicator.rank()),
                         static_cast<int>(communicator.world_size())),
      communicator_(communicator),
      callbacks_(std::move(callbacks)) {}

c10::intrusive_ptr<c10d::Work> CommunicatorProcessGroup::allreduce(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const CollectiveTag tag = callbacks_.tag(CollectiveKind::kAllReduce);
  const at::Tensor& tensor = only(tensors);
  std::unique_ptr<lockstep::Work> in_flight;
  if (tensor.is_sparse()) {
    in_flight = std::make_unique<SparseWork>(
        sparse_all_reduce(communicator_, divided_rows(tensor, 1), tag), tensor);
  } else {
    in_flight = communicator_.all_reduce(tensor, reduce_op(options.reduceOp), tag);
  }
  auto work = c10::make_intrusive<CommunicatorWork>(std::move(in_flight), tensors);
  callbacks_.launched(tag, work);
  return work;
}

c10::intrusive_ptr<c10d::Work> CommunicatorProcessGroup::broadcast(
    std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const CollectiveTag tag = callbacks_.tag(CollectiveKind::kBroadcast);
  return c10::make_intrusive<CommunicatorWork>(
      communicator_.broadcast(only(tensors), options.rootRank, tag), tensors);
}

c10::intrusive_ptr<c10d::Work> CommunicatorProcessGroup::allgather(
    std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions&) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(outputs.size() == 1, "one list of outputs per rank, not ", outputs.size());
  const std::vector<at::Tensor> rows = outputs.front();
  const at::Tensor gathered = at::stack(rows);
  const CollectiveTag tag = callbacks_.tag(CollectiveKind::kAllGather);
  return c10::make_intrusive<CommunicatorWork>(
      communicator_.all_gather(gathered, only(inputs), tag), rows, [rows, gathered] {
        const at::NoGradGuard no_grad_either;
        for (std::size_t rank = 0; rank < rows.size(); ++rank) {
          rows[rank].copy_(gathered[static_cast<std::int64_t>(rank)]);
        }
      });
}

c10::intrusive_ptr<c10d::Work> CommunicatorProcessGroup::barrier(const c10d::BarrierOptions&) {
  return c10::make_intrusive<CommunicatorWork>(
      communicator_.barrier(callbacks_.tag(CollectiveKind::kBarrier)), std::vector<at::Tensor>());
}

}  // namespace lockstep::harness
