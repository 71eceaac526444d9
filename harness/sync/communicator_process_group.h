// SPDX-License-Identifier: Apache-2.0
// A c10d process group whose collectives are those of a Communicator.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <functional>
#include <memory>
#include <vector>

#include "core/communicator.h"

namespace lockstep::harness {

// Note [Waiting where the scheduler can see it]
// c10d's callers wait in two ways: by `Work::wait`, which is virtual and becomes the Communicator's
// own wait here; and by the future of the work, whose wait is not virtual and would block the
// thread without the simulator knowing. So nobody may wait on the future of a work that has not
// ended: whoever is told of a launch has to call `complete` on it before the future is waited for.

/// A collective of the communicator as c10d sees it.
class CommunicatorWork final : public c10d::Work {
 public:
  /// `finish` runs once when the collective has ended, with what remains to be done with `tensors`;
  /// may be empty.
  CommunicatorWork(std::unique_ptr<lockstep::Work> work, std::vector<at::Tensor> tensors,
                   std::function<void()> finish = {});

  /// Waits for the collective and completes the future. Again: does nothing, or throws again.
  /// Errors: what the communicator's work throws; the future then stays incomplete.
  void complete();

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  bool isCompleted() override { return is_complete_; }
  bool isSuccess() const override { return is_complete_; }
  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::unique_ptr<lockstep::Work> work_;
  std::vector<at::Tensor> tensors_;
  std::function<void()> finish_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool is_complete_ = false;
};

/// What a process group asks of its owner. Both run in the launching call.
struct ProcessGroupCallbacks {
  /// What a collective is for.
  std::function<CollectiveTag(CollectiveKind)> tag;
  /// An all_reduce was launched; see Note [Waiting where the scheduler can see it].
  std::function<void(const CollectiveTag&, c10::intrusive_ptr<CommunicatorWork>)> launched;
};

/// all_reduce (sum and max; sums of sparse rows as in core/sparse_all_reduce.h), broadcast,
/// allgather and barrier of one tensor per rank; whatever else c10d offers is refused by its base
/// class.
///
/// Threads: those of the communicator.
/// Errors: c10::Error for another reduction than sum and max; what the communicator throws.
class CommunicatorProcessGroup final : public c10d::ProcessGroup {
 public:
  /// `communicator` outlives the group.
  CommunicatorProcessGroup(Communicator& communicator, ProcessGroupCallbacks callbacks);

  const std::string getBackendName() const override { return "lockstep"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  Communicator& communicator_;
  ProcessGroupCallbacks callbacks_;
};

}  // namespace lockstep::harness
