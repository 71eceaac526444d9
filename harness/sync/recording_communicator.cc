// SPDX-License-Identifier: Apache-2.0
// The list of what was issued.
#include "harness/sync/recording_communicator.h"

#include <c10/core/ScalarType.h>

#include <utility>

namespace lockstep::harness {
namespace {

class MeasuredWork final : public Work {
 public:
  // Clock and result outlive it, as the communicator does.
  MeasuredWork(std::unique_ptr<Work> inner, const std::function<std::int64_t()>& now_ns,
               std::atomic<std::int64_t>& longest_wait_ns)
      : inner_(std::move(inner)), now_ns_(now_ns), longest_wait_ns_(longest_wait_ns) {}

  void wait() override {
    // Also where the wait ends with an exception.
    struct Measured {
      MeasuredWork& work;
      const std::int64_t start_ns;
      ~Measured() {
        const std::int64_t waited_ns = work.now_ns_() - start_ns;
        if (waited_ns > work.longest_wait_ns_) work.longest_wait_ns_ = waited_ns;
      }
    } const measured{*this, now_ns_()};
    inner_->wait();
  }

 private:
  std::unique_ptr<Work> inner_;
  const std::function<std::int64_t()>& now_ns_;
  std::atomic<std::int64_t>& longest_wait_ns_;
};

}  // namespace

std::unique_ptr<Work> RecordingCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                        CollectiveTag tag) {
  auto work = inner_.all_reduce(tensor, op, tag);
  return note(std::move(work), CollectiveKind::kAllReduce, tensor, tag);
}

std::unique_ptr<Work> RecordingCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                       CollectiveTag tag) {
  auto work = inner_.broadcast(tensor, root, tag);
  return note(std::move(work), CollectiveKind::kBroadcast, tensor, tag);
}

std::unique_ptr<Work> RecordingCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                        CollectiveTag tag) {
  auto work = inner_.all_gather(std::move(output), input, tag);
  return note(std::move(work), CollectiveKind::kAllGather, input, tag);
}

std::unique_ptr<Work> RecordingCommunicator::barrier(CollectiveTag tag) {
  auto work = inner_.barrier(tag);
  return note(std::move(work), CollectiveKind::kBarrier, {}, tag);
}

std::vector<CollectiveRecord> RecordingCommunicator::records() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return records_;
}

std::unique_ptr<Work> RecordingCommunicator::note(std::unique_ptr<Work> work, CollectiveKind kind,
                                                  const at::Tensor& tensor,
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
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_.push_back(std::move(record));
  }
  if (!now_ns_) return work;
  return std::make_unique<MeasuredWork>(std::move(work), now_ns_, longest_wait_ns_);
}

}  // namespace lockstep::harness
