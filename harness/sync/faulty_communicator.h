// SPDX-License-Identifier: Apache-2.0
// A communicator that makes the mistakes a case asks for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "harness/disturbances.h"
#include "harness/fault_kinds.h"
#include "harness/sync/recording_communicator.h"

namespace lockstep::harness {

/// Passes everything on to another communicator. Before that the [[at]] entries of its place are
/// carried out; and the first [[fault]] of its place happens to it:
///
///   skip_wait         `wait` returns at once
///   skip_collective   it is not issued; `wait` returns at once
///   swap_collectives  it is issued after the rank's next one, or when it is waited for
///   wrong_numel       it is issued without its last element
///   wrong_dtype       it is issued as Long, with the values of before; as Float where it is Long
///   transport_error   it is issued, and `wait` throws PeerLost
///   corrupt_payload   a bit of the result's first byte is turned over on this rank
///   slow_link         it is issued, and `wait` returns `delay_ms` later
///   cut_link          it is issued, and where it would return `wait` never does (StandStill), or
///                     throws TimedOut after `world.timeout_ms`
///   exit, crash       the process ends, when all that were issued before have ended
///   stop              likewise the process stands still, for longer than others wait
///
/// What has no effect (the wrong size of a barrier) is not noted as carried out.
/// Scripted collectives without a step of their own are tagged with the one that the rank is in.
/// Threads: those of the communicator.
class FaultyCommunicator final : public Communicator {
 public:
  /// `inner` and `disturbances` outlive this.
  FaultyCommunicator(RecordingCommunicator& inner, Disturbances& disturbances);
  ~FaultyCommunicator() override;

  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t world_size() const override { return inner_.world_size(); }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

 private:
  class HeldBack;
  struct Call;
  std::unique_ptr<Work> issue(const Call& call);
  std::unique_ptr<Work> issue_wrong(const Call& call, std::size_t fault);
  std::unique_ptr<Work> complete_wrong(const Call& call, std::size_t fault,
                                       std::unique_ptr<Work> work);
  std::unique_ptr<Work> hold_back(const Call& call, std::size_t fault);
  std::unique_ptr<Work> kept(std::unique_ptr<Work> work);
  CollectiveTag tag_of(CollectiveTag tag) const;
  void issue_held_back();

  RecordingCommunicator& inner_;
  Disturbances& disturbances_;
  std::vector<std::shared_ptr<HeldBack>> held_back_;
  bool keeps_issued_;                          ///< the process may fail before a collective
  std::vector<std::shared_ptr<Work>> issued_;  ///< if so: all but the very old
};

}  // namespace lockstep::harness
