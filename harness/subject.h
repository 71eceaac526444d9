// SPDX-License-Identifier: Apache-2.0
// Somebody's own gradient synchronisation or communicator in the place of what [ddp] names.
#pragma once

#include <functional>
#include <memory>

namespace lockstep {
class Communicator;
}

namespace lockstep::harness {

class GradientSync;
struct SyncParts;

/// What is put to the test; an empty function stands for Lockstep's own.
///
/// Threads: both are called on the rank's own thread, once per rank and `make_sync` once more after
///          every reload. In the simulator one rank runs at a time.
/// Errors:  what they throw is the rank's failure, as anything else that a script throws.
struct Subject {
  /// In the place of the subject that `ddp.sync` names. What the parts point to outlives the
  /// result.
  std::function<std::unique_ptr<GradientSync>(const SyncParts&)> make_sync;
  /// All that a rank issues goes through the result; `transport` is the rank's place in the world,
  /// and outlives it.
  std::function<std::unique_ptr<Communicator>(Communicator& transport)> make_communicator;
};

}  // namespace lockstep::harness
