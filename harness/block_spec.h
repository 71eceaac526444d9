// SPDX-License-Identifier: Apache-2.0
// One block of a model description: its text, its parameters and what it does to a shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::harness {

enum class BlockKind {
  kLinear,
  kRelu,
  kTanh,
  kIdentity,
  kBatchNorm,
  kLayerNorm,
  kDropout,
  kEmbedding,
  kConv2d,
  kFlatten,
  kScale,
  kSame,
};

/// "linear 4 8 no_bias" in parts. Fields that a kind has no use for keep their defaults.
struct BlockSpec {
  BlockKind kind = BlockKind::kIdentity;
  std::int64_t in = 0;      ///< linear: features; conv2d: channels; embedding: vocabulary
  std::int64_t out = 0;     ///< linear, conv2d, embedding: width made; norms and scale: width
  std::int64_t kernel = 0;  ///< conv2d: side of the square kernel; stride 1, no padding
  bool bias = true;         ///< linear, conv2d
  double rate = 0.0;        ///< dropout: probability of a zero
  std::string same;         ///< same: the block whose module this is
};

/// `error` is empty if `text` is a block; else it says what is wrong and how the kind is written.
struct BlockParse {
  BlockSpec spec;
  std::string error;
};
BlockParse parse_block(const std::string& text);

/// "linear", "batch_norm", ...
const char* to_string(BlockKind kind);

using Sizes = std::vector<std::int64_t>;

/// Product of the sizes; 1 for a scalar.
std::int64_t numel_of(const Sizes& sizes);
/// "[4, 8]".
std::string to_string(const Sizes& sizes);

/// A parameter or buffer as LibTorch's module of the same kind would name it.
struct TensorSpec {
  std::string name;
  Sizes sizes;
};
/// In order of registration; empty for kSame, whose module belongs to another block.
std::vector<TensorSpec> block_parameters(const BlockSpec& spec);
std::vector<TensorSpec> block_buffers(const BlockSpec& spec);

/// What flows between blocks: the sizes of one sample, without the batch dimension.
struct SampleShape {
  Sizes sizes;
  bool tokens = false;  ///< integers, which only an embedding takes
};

/// Shape after the block, or in `error` why the block does not take `input`.
struct BlockOutput {
  SampleShape shape;
  std::string error;
};
/// Precondition: `spec.kind` is not kSame.
BlockOutput block_output(const BlockSpec& spec, const SampleShape& input);

/// True if the block's arithmetic stays within dyadic numbers, so that it can be exact.
bool can_be_exact(const BlockSpec& spec);

}  // namespace lockstep::harness
