// SPDX-License-Identifier: Apache-2.0
// The errors of the library, one class per kind that a caller can react to.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep {

/// Root of everything Lockstep throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller asked for something that cannot be; thrown before any effect.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A fault of Lockstep itself. Never caught except by the runners at the very top.
class InvariantError : public Error {
 public:
  using Error::Error;
};

/// A collective did not end as it should. Thrown by `Work::wait()` only.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A peer went away while a collective needed it.
class PeerLost : public CommError {
 public:
  using CommError::CommError;
};

/// A collective did not end within the communicator's time limit.
class TimedOut : public CommError {
 public:
  using CommError::CommError;
};

/// Ranks met in one collective with different ideas of what it is.
class Desync : public CommError {
 public:
  using CommError::CommError;
};

/// A rule of DDP was broken by the training script or the model.
class DdpError : public Error {
 public:
  /// `kind` is a stable identifier, the same word that scenarios use.
  DdpError(std::string kind, const std::string& message, std::vector<std::string> parameters = {})
      : Error(message), kind_(std::move(kind)), parameters_(std::move(parameters)) {}

  /// Construction: `model_mismatch` (B1, B2). Next forward: `reduction_unfinished` (K1),
  /// `static_graph_changed` (K3, K4). Backward: `ready_twice` (K2), `undefined_gradient` (K8),
  /// `not_a_bucket_view` (K9), `gradient_mismatch`, `sparse_gradient` (K11),
  /// `hook_result_mismatch`, `create_graph`. Registration: `hook_registered_twice` (K6),
  /// `static_graph_too_late` (K5). `checkpoint_static_graph`; join: `join_early_termination` (K14),
  /// `join_plan_mismatch` (O9). Checked mode: `parameters_changed`, `parameter_replaced`,
  /// `trainable_set_changed`, `buffers_changed`, `unused_parameters`, `replicas_differ`,
  /// `unarmed_backward`, `buffer_changed_while_saved`.
  const std::string& kind() const { return kind_; }

  /// Names of the parameters the error is about, in index order; may be empty.
  const std::vector<std::string>& parameters() const { return parameters_; }

 private:
  std::string kind_;
  std::vector<std::string> parameters_;
};

}  // namespace lockstep
