// SPDX-License-Identifier: Apache-2.0
// A communicator that makes the mistakes a case asks for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "harness/case.h"

namespace lockstep::harness {

/// Whether a fault of this kind happens to collectives: "skip_wait", "skip_collective",
/// "swap_collectives", "wrong_numel", "wrong_dtype", "transport_error", "corrupt_payload".
bool is_collective_fault(const std::string& kind);

/// Passes everything on to another communicator, except for the collectives that a fault is about
/// (its ranks, steps, site and bucket).
///
///   skip_wait         `wait` returns at once
///   skip_collective   it is not issued; `wait` returns at once
///   swap_collectives  it is issued after the rank's next one, or when it is waited for
///   wrong_numel       it is issued without its last element
///   wrong_dtype       it is issued as Long, with the values of before
///   transport_error   it is issued, and `wait` throws PeerLost
///   corrupt_payload   a bit of the result's first byte is turned over on this rank
///
/// Threads: those of the communicator.
class FaultyCommunicator final : public Communicator {
 public:
  /// `inner` and `faults` outlive this.
  FaultyCommunicator(Communicator& inner, const std::vector<FaultSpec>& faults)
      : inner_(inner), faults_(faults) {}
  ~FaultyCommunicator() override;

  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t world_size() const override { return inner_.world_size(); }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

 private:
  class HeldBack;
  template <typename Issue>
  std::unique_ptr<Work> issue(const CollectiveTag& tag, at::Tensor tensor, const Issue& issue);
  std::string fault_of(const CollectiveTag& tag) const;
  void issue_held_back();

  Communicator& inner_;
  const std::vector<FaultSpec>& faults_;
  std::vector<std::shared_ptr<HeldBack>> held_back_;
};

}  // namespace lockstep::harness
