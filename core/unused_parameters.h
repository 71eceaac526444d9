// SPDX-License-Identifier: Apache-2.0
// Which parameters a forward did not use, and which ones no rank used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/communicator.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep {

/// Gradient accumulator of each parameter -> parameter index.
using AccumulatorIndex = std::unordered_map<const torch::autograd::Node*, std::int64_t>;

/// What the autograd graph of a forward tells of a parameter.
enum class Use : std::uint8_t {
  kMet,     ///< a walk from the outputs meets its gradient accumulator, or it is itself an output
  kUnmet,   ///< it will get no gradient
  kHidden,  ///< not met, but a re-entrant checkpoint in the graph may use it
};

/// Walks the graph from `outputs`. Shape: [P], by parameter index.
std::vector<Use> search_uses(const std::vector<at::Tensor*>& outputs,
                             const AccumulatorIndex& accumulators);

/// The parameters whose gradient accumulator is not met, ascending (I1), hidden ones included.
std::vector<std::int64_t> search_unused_parameters(const std::vector<at::Tensor*>& outputs,
                                                   const AccumulatorIndex& accumulators);

/// One flag per parameter: used on this rank; after a reduction also: used on how many ranks (I4).
class UsedMap {
 public:
  /// Everything unused. `device` is where the collective takes place.
  UsedMap(std::int64_t num_parameters, at::Device device);

  void mark(std::int64_t parameter) { local_[static_cast<std::size_t>(parameter)] = 1; }
  void forget(std::int64_t parameter) { local_[static_cast<std::size_t>(parameter)] = 0; }
  bool used_locally(std::int64_t parameter) const {
    return local_[static_cast<std::size_t>(parameter)] != 0;
  }

  /// Issues the collective: a SUM of int32, one element per parameter.
  void launch(Communicator& communicator, CollectiveTag tag);
  /// How many ranks used `parameter`. Waits for the collective if need be (I5).
  /// Errors: CommError.
  std::int64_t ranks_using(std::int64_t parameter);
  /// Waits for the collective if it is still in flight. Errors: CommError.
  void wait();
  /// Everything unused again; what was reduced stays readable through `reduced`.
  void reset();
  /// The last reduced counts. Shape: [P], int32, on the CPU; zeros before the first reduction.
  const std::vector<std::int32_t>& reduced() const { return reduced_; }

 private:
  at::Device device_;
  std::vector<std::int32_t> local_;
  std::vector<std::int32_t> reduced_;
  at::Tensor in_flight_;
  std::unique_ptr<Work> work_;
};

}  // namespace lockstep
