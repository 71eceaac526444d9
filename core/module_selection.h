// SPDX-License-Identifier: Apache-2.0
// Which tensors of a module a wrapper looks after.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <vector>

#include "core/bucket_plan.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Tensors with their names, each once, by its first name, in the order of the module (A1).
struct Selection {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

/// Those that are defined and not in `ignored` (A2).
Selection parameters_of(const torch::nn::Module& module, const std::set<std::string>& ignored);
Selection buffers_of(const torch::nn::Module& module, const std::set<std::string>& ignored);

/// Those that require a gradient.
Selection trainable(const Selection& all);

/// Whose gradients are sparse: the weights of embeddings that say so (C4), and `declared` ones.
/// Errors: UsageError for a declared name that is no parameter.
SparseFlags sparse_flags(const torch::nn::Module& module, const std::vector<std::string>& declared,
                         const Selection& selection);

/// Errors: UsageError for a name that is neither a parameter nor a buffer.
void check_ignored(const torch::nn::Module& module, const std::vector<std::string>& ignored);
/// Errors: UsageError for tensors on several types of devices (A4).
void check_devices(const Selection& selection);

}  // namespace lockstep
