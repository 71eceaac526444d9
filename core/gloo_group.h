// SPDX-License-Identifier: Apache-2.0
// Ranks connected by Gloo, running one collective at a time. Internal to the Gloo transport.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/gloo_communicator.h"

namespace lockstep {

/// A collective and its tensors.
struct GlooCollective {
  CollectiveDescription what;
  at::Tensor tensor;  ///< all_reduce, broadcast: in place; all_gather: output
  at::Tensor input;   ///< all_gather only
};

class GlooGroup {
 public:
  /// Meets and connects; errors as for GlooCommunicator's constructor.
  explicit GlooGroup(const GlooOptions& options);
  ~GlooGroup();

  /// See GlooCommunicator.
  const std::string& listens_on() const;

  /// True if `all_reduce` can reduce this dtype.
  static bool can_reduce(at::ScalarType dtype);

  /// Runs a collective to its end. After an error every connection is closed.
  /// Errors: PeerLost, TimedOut, Desync; CommError after `abort`.
  /// Threads: one thread only.
  void run(const GlooCollective& collective);

  /// Makes a `run` in progress, and every later one, fail soon. May be called from any thread.
  void abort() noexcept;

  /// Ranks that are not known to have entered collective `seq`, the running one, ascending.
  /// May be called from any thread.
  std::vector<std::int64_t> missing(std::int64_t seq) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
