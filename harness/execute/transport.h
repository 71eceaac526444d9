// SPDX-License-Identifier: Apache-2.0
// A worker's way to the other ranks of a case.
#pragma once

#include <memory>
#include <string>

#include "core/communicator.h"
#include "harness/execute/worker_protocol.h"

namespace lockstep::harness {

/// True if this program can make communicators of `transport`: "gloo", "c10d_gloo" or "nccl". Of
/// NCCL it can be built in, and still be of no use without a GPU (see why_no_nccl).
bool has_transport(const std::string& transport);

/// Makes one communicator per case. Keeps what cases can share.
class Transports {
 public:
  Transports();
  ~Transports();

  /// Blocks until the ranks of the case have met. `check_tags` matters to "gloo" alone.
  /// Errors: CommError if they do not meet; UsageError; InvariantError for a transport that is not
  ///         there.
  std::unique_ptr<Communicator> connect(const CaseOrder& order, bool check_tags);

  /// Of the communicator made last: see GlooCommunicator; empty for other transports.
  const std::string& listens_on() const { return listens_on_; }

 private:
  std::unique_ptr<Communicator> connect_gloo(const CaseOrder& order, bool check_tags);

  std::string listens_on_;
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace lockstep::harness
