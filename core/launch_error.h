// SPDX-License-Identifier: Apache-2.0
// Why the processes of a run did not find together.
#pragma once

#include <string>
#include <utility>

#include "core/error.h"

namespace lockstep {

/// A setting of the launch that cannot be, told before anything is connected.
class LaunchError : public UsageError {
 public:
  /// `kind` is a stable identifier, the same word that scenarios use.
  LaunchError(std::string kind, const std::string& message)
      : UsageError(message), kind_(std::move(kind)) {}

  /// `foreign_run`: the store belongs to another run. `store_unusable`: it is not there, not
  /// private, or cannot be read. `rank_out_of_range`, `rank_taken`, `world_sizes_differ`: what the
  /// processes were told does not fit together. `no_such_interface`, `loopback_address`,
  /// `port_taken`: where a rank listens.
  const std::string& kind() const { return kind_; }

 private:
  std::string kind_;
};

}  // namespace lockstep
