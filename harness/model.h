// SPDX-License-Identifier: Apache-2.0
// The module a case describes: a graph of named blocks with routing. Needs no tensors, so that
// files can be checked without building models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness {

/// Which blocks a forward leaves out.
///
/// - A skipped block is left out of its stage's sum. A stage with nothing left hands its input on.
/// - A skipped head yields no output. The only head, skipped, hands its input on as its output.
/// - A muted block runs, and its output is multiplied by zero: its parameters' gradients are zeros.
/// - `exit_after` names a block before the last stage: its stage is the last one that runs, and its
///   output is that of head 0. It is the same as skipping every later block of a model with one
///   head; the other heads yield nothing.
/// - `without_loss` names heads that run, and whose outputs are left out of the loss.
struct Route {
  std::vector<std::string> skip;
  std::string exit_after;
  std::vector<std::string> mute, without_loss;
  friend bool operator==(const Route& a, const Route& b) {
    return a.skip == b.skip && a.exit_after == b.exit_after && a.mute == b.mute &&
           a.without_loss == b.without_loss;
  }
};

class GraphModel;  // a torch::nn::Module; see harness/graph_model.h

/// What the first block takes. Blocks without a size of their own are passed over to find it.
enum class InputKind { kFeatures, kTokens, kImage };

struct InputShape {
  InputKind kind = InputKind::kFeatures;
  std::vector<std::int64_t> sizes;  ///< of one sample
  std::int64_t vocabulary = 0;      ///< kTokens
};

struct ModelFinding {
  std::string key;      ///< "model.blocks.vision", "model.forward", ...
  std::string message;  ///< what is wrong and what would be right
};
/// Every mistake of a model description, with the key it is about; empty if there is none.
std::vector<ModelFinding> check_model(const ModelSpec& model, const DataSpec& data);

/// Every mistake of a route: names that do not exist, and shapes that do not fit once blocks are
/// left out. Keys are "skip" and "exit_after". Precondition: check_model found nothing.
std::vector<ModelFinding> check_route(const ModelSpec& model, const DataSpec& data,
                                      const Route& route);

/// Block names, parameter names ("layer0.weight") and buffer names in registration order, without
/// building the model. A parameter with several names appears once, under its first.
/// Precondition: check_model found nothing.
std::vector<std::string> block_names(const ModelSpec& model);
std::vector<std::string> parameter_names(const ModelSpec& model);
std::vector<std::string> buffer_names(const ModelSpec& model);
/// The blocks of the last stage, in head order.
std::vector<std::string> head_names(const ModelSpec& model);

/// The entries of parameter_names() that `name` stands for: a parameter under any of its names, or
/// all parameters of a block. Empty if there is no such parameter or block, or the block has none.
std::vector<std::string> parameters_of(const ModelSpec& model, const std::string& name);

InputShape input_shape(const ModelSpec& model, const DataSpec& data);
/// Sizes of each head's output for one sample, in head order.
std::vector<std::vector<std::int64_t>> output_shapes(const ModelSpec& model, const DataSpec& data);
/// True if the model draws random numbers in forward (dropout), or its forward depends on the other
/// samples of the batch (BatchNorm): then the serial reference is not defined. Blocks that no stage
/// names do not count.
bool uses_dropout(const ModelSpec& model);
bool uses_batch_norm(const ModelSpec& model);
/// True if the forwards of all ranks depend on each other. The serial reference is defined then, if
/// its batch is that of all ranks: with one micro-batch.
bool uses_sync_batch_norm(const ModelSpec& model);
/// True if ranks exchange activations: the serial reference is not defined.
bool uses_all_to_all(const ModelSpec& model);
/// Names as in parameter_names() of those whose gradients are sparse, and of complex ones; used or
/// not.
std::vector<std::string> sparse_parameters(const ModelSpec& model);
std::vector<std::string> complex_parameters(const ModelSpec& model);

}  // namespace lockstep::harness
