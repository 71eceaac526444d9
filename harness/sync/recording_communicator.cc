// SPDX-License-Identifier: Apache-2.0
// The list of what was issued.
#include "harness/sync/recording_communicator.h"

#include <c10/core/ScalarType.h>

#include <utility>

namespace lockstep::harness {

std::unique_ptr<Work> RecordingCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                        CollectiveTag tag) {
  note(CollectiveKind::kAllReduce, tensor, tag);
  return inner_.all_reduce(std::move(tensor), op, tag);
}

std::unique_ptr<Work> RecordingCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                       CollectiveTag tag) {
  note(CollectiveKind::kBroadcast, tensor, tag);
  return inner_.broadcast(std::move(tensor), root, tag);
}

std::unique_ptr<Work> RecordingCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                        CollectiveTag tag) {
  note(CollectiveKind::kAllGather, input, tag);
  return inner_.all_gather(std::move(output), std::move(input), tag);
}

std::unique_ptr<Work> RecordingCommunicator::barrier(CollectiveTag tag) {
  note(CollectiveKind::kBarrier, {}, tag);
  return inner_.barrier(tag);
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
  records_.push_back(std::move(record));
}

}  // namespace lockstep::harness
