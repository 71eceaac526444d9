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
  kDetach,
  kBatchNorm,
  kSyncBatchNorm,
  kLayerNorm,
  kDropout,
  kEmbedding,
  kConv2d,
  kFlatten,
  kScale,
  kOffset,
  kAllToAll,
  kGain,
  kSame,
};

/// Whether a block's forward is computed a second time in backward, and by which kind of
/// checkpoint.
enum class Checkpointing { kNone, kPlain, kReentrant };

/// "linear 4 8 no_bias" in parts. Fields that a kind has no use for keep their defaults.
struct BlockSpec {
  BlockKind kind = BlockKind::kIdentity;
  std::int64_t in = 0;      ///< linear: features; conv2d: channels; embedding: vocabulary
  std::int64_t out = 0;     ///< linear, conv2d, embedding: width made; norms, scale and offset:
                            ///< width
  std::int64_t kernel = 0;  ///< conv2d: side of the square kernel; stride 1, no padding
  bool bias = true;         ///< linear, conv2d
  double rate = 0.0;        ///< dropout: probability of a zero
  std::string same;         ///< same: the block whose module this is
  bool sparse = false;      ///< embedding: its gradient holds the rows that were looked up
  Checkpointing checkpoint = Checkpointing::kNone;
  /// Of the block's parameters: "float64" | "complex64"; empty: the model's. The input is converted
  /// to it. A complex block yields real and imaginary parts as separate numbers.
  std::string dtype;
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

inline bool is_complex(const BlockSpec& spec) { return spec.dtype == "complex64"; }

/// True if the block's arithmetic stays within dyadic numbers, so that it can be exact.
bool can_be_exact(const BlockSpec& spec);

}  // namespace lockstep::harness
