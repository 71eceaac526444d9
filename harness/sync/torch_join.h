// SPDX-License-Identifier: Apache-2.0
// Join for PyTorch's reducer: what its Python layer says to the other ranks, re-created.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "core/communicator.h"

namespace lockstep::harness {

/// What joined ranks do in the place of the reducer.
struct TorchShadow {
  std::function<void()> iteration;
  std::function<void(std::int64_t root)> finish;  ///< takes over the state of rank `root`
};

/// The collectives by which ranks tell each other who still has inputs (O1 to O4). One float each,
/// where ours announces a whole plan.
///
/// Threads: the rank's own.
/// Errors:  DdpError `join_early_termination`; what the communicator throws.
class TorchJoin {
 public:
  /// `mode`: as ddp.join. `communicator` outlives this.
  TorchJoin(std::string mode, Communicator& communicator);

  bool is_on() const { return mode_ != "off"; }
  bool divides_by_initial() const { return mode_ != "divide_by_active"; }

  /// Active ranks, at the start of each forward. The result of the work is the number of them.
  c10::intrusive_ptr<c10d::Work> notify();
  /// Active ranks, before the module runs: whether no_sync is off. Unlike ours it does not ask
  /// whether gradients are recorded at all.
  void announce(bool synchronizes);
  /// Joined ranks: whether any active rank synchronises.
  bool anyone_synchronizes();
  /// The highest rank of the candidates (J2, O3).
  std::int64_t highest_rank(bool is_candidate);

  /// Runs the loop, then shadows the others' iterations until no rank is active (O1).
  void run(const std::function<void()>& loop, const TorchShadow& shadow);

 private:
  at::Tensor sum(CallSite site, float value);

  const std::string mode_;
  Communicator& communicator_;
};

}  // namespace lockstep::harness
