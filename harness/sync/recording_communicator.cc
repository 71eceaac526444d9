// SPDX-License-Identifier: Apache-2.0
// The list of what was issued.
#include "harness/sync/recording_communicator.h"

#include <c10/core/ScalarType.h>

#include <utility>

namespace lockstep::harness {

std::unique_ptr<Work> RecordingCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                        CollectiveTag tag) {
  auto work = inner_.all_reduce(tensor, op, tag);
  note(CollectiveKind::kAllReduce, tensor, tag);
  return work;
}

std::unique_ptr<Work> RecordingCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                       CollectiveTag tag) {
  auto work = inner_.broadcast(tensor, root, tag);
  note(CollectiveKind::kBroadcast, tensor, tag);
  return work;
}

std::unique_ptr<Work> RecordingCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                        CollectiveTag tag) {
  auto work = inner_.all_gather(std::move(output), input, tag);
  note(CollectiveKind::kAllGather, input, tag);
  return work;
}

std::unique_ptr<Work> RecordingCommunicator::barrier(CollectiveTag tag) {
  auto work = inner_.barrier(tag);
  note(CollectiveKind::kBarrier, {}, tag);
  return work;
}

std::vector<CollectiveRecord> RecordingCommunicator::records() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return records_;
}

void RecordingCommunicator::note(CollectiveKind kind, const at::Tensor& tensor,
                                 const CollectiveTag& tag) {
  CollectiveRecord record;
  record.collective = to_string(kind);
  record.site = to_string(tag.site);
  record.step = tag.step;
  record.bucket = tag.bucket;
  if (tensor.defined()) {
    record.numel = tensor.numel();
    record.dtype = c10::toString(tensor.scalar_type());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  records_.push_back(std::move(record));
}

}  // namespace lockstep::harness
