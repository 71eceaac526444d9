// SPDX-License-Identifier: Apache-2.0
// The module a case describes: a graph of named blocks with routing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness {

/// Which blocks a forward leaves out.
struct Route {
  std::vector<std::string> skip;
  std::string exit_after;
  friend bool operator==(const Route& a, const Route& b) {
    return a.skip == b.skip && a.exit_after == b.exit_after;
  }
};

class GraphModel;  // a torch::nn::Module; see harness/graph_model.h

/// What the first block takes.
enum class InputKind { kFeatures, kTokens, kImage };

struct InputShape {
  InputKind kind = InputKind::kFeatures;
  std::vector<std::int64_t> sizes;  ///< of one sample
  std::int64_t vocabulary = 0;      ///< kTokens
};

/// Every mistake of a model description, with the key it is about; empty if there is none.
/// Needs no tensors, so that files can be checked without building models.
struct ModelFinding {
  std::string key;      ///< "model.blocks.vision", "model.forward", ...
  std::string message;  ///< what is wrong and what would be right
};
std::vector<ModelFinding> check_model(const ModelSpec& model, const DataSpec& data);

/// Block names, parameter names ("layer0.weight") and buffer names in registration order, without
/// building the model. Precondition: check_model found nothing.
std::vector<std::string> block_names(const ModelSpec& model);
std::vector<std::string> parameter_names(const ModelSpec& model);

InputShape input_shape(const ModelSpec& model, const DataSpec& data);
/// Sizes of each head's output for one sample, in head order.
std::vector<std::vector<std::int64_t>> output_shapes(const ModelSpec& model, const DataSpec& data);
/// True if the model draws random numbers in forward (dropout), or its forward depends on the other
/// samples of the batch (BatchNorm): then the serial reference is not defined.
bool uses_dropout(const ModelSpec& model);
bool uses_batch_norm(const ModelSpec& model);

}  // namespace lockstep::harness
