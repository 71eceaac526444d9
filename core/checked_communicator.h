// SPDX-License-Identifier: Apache-2.0
// A communicator that compares every collective over its ranks before it takes place.
#pragma once

#include <cstdint>
#include <memory>

#include "core/communicator.h"

namespace lockstep {

/// Puts one all-gather of seven numbers before every collective of `inner`: kind, numel, dtype, op
/// or root, and the tag. A wrong pairing becomes an error on every rank, at the collective that is
/// wrong, where a transport would hang or mix up what it carries. For transports that do not
/// compare themselves; our Gloo communicator and the simulator do.
///
/// A launch waits for the other ranks, so nothing overlaps: for finding mistakes, not for speed.
/// Threads: as `inner`. Errors: besides those of `inner`, Desync out of `Work::wait`, naming both
/// ranks and both collectives.
class CheckedCommunicator final : public Communicator {
 public:
  /// `inner` outlives this and is not used by others meanwhile.
  explicit CheckedCommunicator(Communicator& inner) : inner_(inner) {}

  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t world_size() const override { return inner_.world_size(); }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

 private:
  /// The error of a collective that ranks disagree about; null if they agree.
  std::unique_ptr<Work> disagreement(CollectiveKind kind, const at::Tensor& tensor,
                                     std::int64_t detail, CollectiveTag tag);

  Communicator& inner_;
  std::int64_t seq_ = 0;
};

}  // namespace lockstep
