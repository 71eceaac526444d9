// SPDX-License-Identifier: Apache-2.0
// Checked mode: mistakes of a training script become errors before wrong gradients are used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/unused_parameters.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// How much a wrapper checks beyond what it needs itself.
enum class Checks : std::uint8_t {
  kOff,
  kFast,  ///< local looks at every forward and backward; replicas every `replicas_every` steps
  kFull,  ///< also: one small collective per synchronised forward, replicas at every step
};

struct CheckOptions {
  Checks level = Checks::kOff;
  /// kFast: compare checksums of the replicas in every so many synchronised forwards; 0: never.
  std::int64_t replicas_every = 100;
  /// How many backwards belong to one synchronised forward; the last of them must finish the
  /// reduction (F7).
  std::int64_t backwards_per_forward = 1;
};

/// Tensors that must be the same on all ranks besides parameters and buffers, with their names: an
/// optimizer's state. Called at a synchronised forward, on the training thread.
using CheckedState = std::function<std::vector<std::pair<std::string, at::Tensor>>()>;

/// What wrapping saw of a module; later looks must see the same (A10).
///
/// Threads: the wrapper's own.
class ModuleWatch {
 public:
  /// `may_freeze`: what is frozen later counts as unused, and is made up for (I3). The reducer has
  /// registered its hooks, and keeps them for as long as this looks.
  ModuleWatch(const torch::nn::Module& module, std::set<std::string> ignored, bool may_freeze);

  /// Compares parameters (which tensors, requires_grad) and buffers (names, sizes, dtypes).
  /// Errors: DdpError `parameter_replaced`, `trainable_set_changed`, `parameters_changed`,
  ///         `buffers_changed`, naming rank, step, tensor and the way out.
  void look(const torch::nn::Module& module, std::int64_t rank, std::int64_t step);

 private:
  void compare_by_name(const torch::nn::Module& module, std::int64_t rank, std::int64_t step) const;

  struct ParameterMark {
    std::string name;
    at::Tensor tensor;                  // held, so that its address is not given to another
    const void* accumulator = nullptr;  // held by the reducer
    bool requires_grad = false;
  };
  struct BufferMark {
    std::string name;
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
  };
  /// A tensor in the order of a walk over the modules, ignored ones included: cheap to compare.
  struct Sighting {
    const at::TensorImpl* tensor = nullptr;
    const void* accumulator = nullptr;  ///< what adds to its gradient; null until there is one
    bool requires_grad = false;
    std::int64_t numel = 0;
    at::ScalarType dtype = at::kFloat;
    friend bool operator==(const Sighting& a, const Sighting& b) {
      return a.tensor == b.tensor && a.accumulator == b.accumulator &&
             a.requires_grad == b.requires_grad && a.numel == b.numel && a.dtype == b.dtype;
    }
  };

  static std::vector<Sighting> sightings(const torch::nn::Module& module);

  std::vector<Sighting> seen_;  ///< by the last walk that was compared by name
  std::set<std::string> ignored_;
  bool may_freeze_;
  std::vector<ParameterMark> parameters_;
  std::vector<BufferMark> buffers_;
};

/// Compares names, order, dtypes and requires_grad of all parameters and names, sizes and dtypes of
/// all buffers over the ranks. Two all-gathers, two more if there is a difference.
/// Errors: DdpError `model_mismatch`, the same text on every rank; CommError.
void verify_module(Communicator& communicator, const torch::nn::Module& module,
                   const std::set<std::string>& ignored);

/// Compares which parameters the ranks' last forward left unused; one all-gather of [P] int32.
/// `uses`: [P], on this rank. `may_differ`: find_unused_parameters or static_graph.
/// Errors: DdpError `unused_parameters` on every rank if one rank leaves parameters unused that
///         nothing will make up for: backward would leave ranks waiting or gradients unreduced (K1,
///         I9); CommError. Hidden ones are not accused: if backward does not reach them, its end
///         tells.
void verify_unused(Communicator& communicator, const std::vector<Use>& uses,
                   const std::vector<std::string>& names, bool may_differ, std::int64_t step);

/// What a rank holds.
struct ReplicaState {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  ///< by name
  bool is_compared = true;  ///< false on a rank that has joined: its replica is behind
};

/// Compares the bytes of `state` over the ranks: one all-gather of a checksum, one more of a
/// checksum per tensor if there is a difference.
/// Errors: DdpError `replicas_differ` on every rank, naming the first tensor that differs and the
///         ranks whose bytes are not those of the first rank compared; CommError.
void verify_replicas(Communicator& communicator, const ReplicaState& state, std::int64_t step);

}  // namespace lockstep
