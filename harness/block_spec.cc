// SPDX-License-Identifier: Apache-2.0
// Parser and shape rules of single blocks.
#include "harness/block_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string_view>

#include "core/check.h"

namespace lockstep::harness {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxKernel = 64;

struct KindEntry {
  std::string_view word;
  BlockKind kind;
  int integers;            ///< how many sizes follow the word
  std::string_view usage;  ///< an example, for messages
};

constexpr KindEntry kKinds[] = {
    {"linear", BlockKind::kLinear, 2, "linear 4 8\" or \"linear 4 8 no_bias"},
    {"relu", BlockKind::kRelu, 0, "relu"},
    {"tanh", BlockKind::kTanh, 0, "tanh"},
    {"identity", BlockKind::kIdentity, 0, "identity"},
    {"detach", BlockKind::kDetach, 0, "detach"},
    {"batch_norm", BlockKind::kBatchNorm, 1, "batch_norm 8"},
    {"sync_batch_norm", BlockKind::kSyncBatchNorm, 1, "sync_batch_norm 8"},
    {"layer_norm", BlockKind::kLayerNorm, 1, "layer_norm 8"},
    {"dropout", BlockKind::kDropout, 0, "dropout 0.5"},
    {"embedding", BlockKind::kEmbedding, 2, "embedding 16 4\" or \"embedding 16 4 sparse"},
    {"conv2d", BlockKind::kConv2d, 3, "conv2d 1 4 3\" or \"conv2d 1 4 3 no_bias"},
    {"flatten", BlockKind::kFlatten, 0, "flatten"},
    {"scale", BlockKind::kScale, 1, "scale 4"},
    {"offset", BlockKind::kOffset, 1, "offset 4"},
    {"all_to_all", BlockKind::kAllToAll, 0, "all_to_all"},
    {"gain", BlockKind::kGain, 1, "gain 4"},
    {"same", BlockKind::kSame, 0, "same NAME"},
};

bool has_parameters(BlockKind kind) {
  switch (kind) {
    case BlockKind::kLinear:
    case BlockKind::kConv2d:
    case BlockKind::kEmbedding:
    case BlockKind::kScale:
    case BlockKind::kOffset:
    case BlockKind::kBatchNorm:
    case BlockKind::kSyncBatchNorm:
    case BlockKind::kLayerNorm:
      return true;
    default:
      return false;
  }
}

/// A word behind the sizes, and the kinds that it fits.
struct OptionEntry {
  std::string_view word;
  bool (*fits)(BlockKind);
  std::string_view fits_what;  ///< for messages
  void (*set)(BlockSpec&);
};

bool may_be_checkpointed(BlockKind kind) {
  return kind != BlockKind::kSame && kind != BlockKind::kSyncBatchNorm &&
         kind != BlockKind::kAllToAll;
}

constexpr std::string_view kCheckpointed =
    "every kind but \"same\", whose module is another block's, and sync_batch_norm and all_to_all, "
    "whose collectives would be issued twice";

constexpr OptionEntry kOptions[] = {
    {"no_bias",
     [](BlockKind kind) { return kind == BlockKind::kLinear || kind == BlockKind::kConv2d; },
     "linear and conv2d", [](BlockSpec& spec) { spec.bias = false; }},
    {"sparse", [](BlockKind kind) { return kind == BlockKind::kEmbedding; }, "embedding",
     [](BlockSpec& spec) { spec.sparse = true; }},
    {"checkpoint", may_be_checkpointed, kCheckpointed,
     [](BlockSpec& spec) { spec.checkpoint = Checkpointing::kPlain; }},
    {"checkpoint_reentrant", may_be_checkpointed, kCheckpointed,
     [](BlockSpec& spec) { spec.checkpoint = Checkpointing::kReentrant; }},
    {"float64", has_parameters, "kinds with parameters",
     [](BlockSpec& spec) { spec.dtype = "float64"; }},
    {"complex64", [](BlockKind kind) { return kind == BlockKind::kLinear; }, "linear",
     [](BlockSpec& spec) { spec.dtype = "complex64"; }},
};

std::vector<std::string> words_of(const std::string& text) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  std::vector<std::string> words;
  for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kSpace, end);
  }
  return words;
}

template <typename T>
bool parse_number(const std::string& word, T& value) {
  const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
  return status == std::errc() && end == word.data() + word.size();
}

/// Fills the sizes that follow the kind's word; returns what is wrong, or nothing.
std::string parse_sizes(const KindEntry& entry, const std::vector<std::string>& words,
                        BlockSpec& spec) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < entry.integers; ++i) {
    const std::string& word = words[1 + static_cast<std::size_t>(i)];
    std::int64_t size = 0;
    const std::int64_t limit = i == 2 ? kMaxKernel : kMaxWidth;
    const std::int64_t least = entry.kind == BlockKind::kLinear && i == 1 ? 0 : 1;
    if (!parse_number(word, size) || size < least || size > limit) {
      return fmt::format("\"{}\" is not a size from {} to {}", word, least, limit);
    }
    sizes.push_back(size);
  }
  if (entry.integers == 1) {
    spec.out = sizes[0];
  } else if (entry.integers >= 2) {
    spec.in = sizes[0];
    spec.out = sizes[1];
  }
  if (entry.integers == 3) {
    spec.kernel = sizes[2];
  }
  return "";
}

/// Takes the options off the end of `words`; returns what is wrong, or nothing.
std::string parse_options(std::vector<std::string>& words, BlockSpec& spec) {
  const std::size_t at_least = spec.kind == BlockKind::kSame ? 2 : 1;
  while (words.size() > at_least) {
    const auto* const option =
        std::find_if(std::begin(kOptions), std::end(kOptions),
                     [&](const OptionEntry& entry) { return entry.word == words.back(); });
    if (option == std::end(kOptions)) {
      return "";
    }
    if (!option->fits(spec.kind)) {
      return fmt::format("\"{}\" is for {}", option->word, option->fits_what);
    }
    const BlockSpec before = spec;
    option->set(spec);
    const bool twice = before.bias == spec.bias && before.sparse == spec.sparse &&
                       before.checkpoint == spec.checkpoint && before.dtype == spec.dtype;
    const bool contradicts =
        (before.checkpoint != Checkpointing::kNone && before.checkpoint != spec.checkpoint) ||
        (!before.dtype.empty() && before.dtype != spec.dtype);
    if (twice || contradicts) {
      return fmt::format("\"{}\" says again what another word says", option->word);
    }
    words.pop_back();
  }
  return "";
}

std::string parse_words(const KindEntry& entry, std::vector<std::string> words, BlockSpec& spec) {
  spec.kind = entry.kind;
  const std::string wrong_option = parse_options(words, spec);
  if (!wrong_option.empty()) {
    return wrong_option;
  }
  const bool takes_word = entry.kind == BlockKind::kDropout || entry.kind == BlockKind::kSame;
  const std::size_t expected = 1 + static_cast<std::size_t>(entry.integers) + (takes_word ? 1 : 0);
  if (words.size() != expected) {
    return fmt::format("has {} words after the kind instead of {}", words.size() - 1, expected - 1);
  }
  if (entry.kind == BlockKind::kSame) {
    spec.same = words[1];
  }
  if (entry.kind == BlockKind::kDropout) {
    if (!parse_number(words[1], spec.rate) || !(spec.rate >= 0.0 && spec.rate < 1.0)) {
      return fmt::format("\"{}\" is not a probability from 0 to below 1", words[1]);
    }
  }
  return parse_sizes(entry, words, spec);
}

BlockOutput mismatch(const BlockSpec& spec, const SampleShape& input, const std::string& wanted) {
  return {{},
          fmt::format("\"{}\" takes {}, but gets {}{}", to_string(spec.kind), wanted,
                      input.tokens ? "tokens " : "", to_string(input.sizes))};
}

/// linear, layer_norm: work on the last dimension, whatever stands before it.
BlockOutput on_last_dimension(const BlockSpec& spec, const SampleShape& input, std::int64_t in) {
  if (input.sizes.empty() || input.sizes.back() != in) {
    return mismatch(spec, input, fmt::format("a last dimension of {}", in));
  }
  SampleShape shape = input;
  shape.sizes.back() = is_complex(spec) ? 2 * spec.out : spec.out;
  return {shape, ""};
}

BlockOutput conv2d_output(const BlockSpec& spec, const SampleShape& input) {
  const bool fits = input.sizes.size() == 3 && input.sizes[0] == spec.in &&
                    input.sizes[1] >= spec.kernel && input.sizes[2] >= spec.kernel;
  if (!fits) {
    return mismatch(
        spec, input,
        fmt::format("[{}, height, width] with sides of at least {}", spec.in, spec.kernel));
  }
  return {{{spec.out, input.sizes[1] - spec.kernel + 1, input.sizes[2] - spec.kernel + 1}, false},
          ""};
}

}  // namespace

BlockParse parse_block(const std::string& text) {
  BlockParse result;
  const std::vector<std::string> words = words_of(text);
  for (const KindEntry& entry : kKinds) {
    if (!words.empty() && words[0] == entry.word) {
      const std::string wrong = parse_words(entry, words, result.spec);
      if (!wrong.empty()) {
        result.error = fmt::format("\"{}\": {}; write \"{}\"", text, wrong, entry.usage);
      }
      return result;
    }
  }
  std::string kinds;
  for (const KindEntry& entry : kKinds) {
    kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", entry.word);
  }
  result.error = fmt::format("\"{}\" does not begin with a kind of block ({})", text, kinds);
  return result;
}

const char* to_string(BlockKind kind) {
  for (const KindEntry& entry : kKinds) {
    if (entry.kind == kind) {
      return entry.word.data();
    }
  }
  throw InvariantError("unknown block kind");
}

std::int64_t numel_of(const Sizes& sizes) {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) {
    numel *= size;
  }
  return numel;
}

std::string to_string(const Sizes& sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

std::vector<TensorSpec> block_parameters(const BlockSpec& spec) {
  std::vector<TensorSpec> parameters;
  switch (spec.kind) {
    case BlockKind::kLinear:
      parameters.push_back({"weight", {spec.out, spec.in}});
      break;
    case BlockKind::kConv2d:
      parameters.push_back({"weight", {spec.out, spec.in, spec.kernel, spec.kernel}});
      break;
    case BlockKind::kEmbedding:
      return {{"weight", {spec.in, spec.out}}};
    case BlockKind::kScale:
    case BlockKind::kOffset:
      return {{"weight", {spec.out}}};
    case BlockKind::kBatchNorm:
    case BlockKind::kSyncBatchNorm:
    case BlockKind::kLayerNorm:
      return {{"weight", {spec.out}}, {"bias", {spec.out}}};
    default:
      return {};
  }
  if (spec.bias) {
    parameters.push_back({"bias", {spec.out}});
  }
  return parameters;
}

std::vector<TensorSpec> block_buffers(const BlockSpec& spec) {
  if (spec.kind == BlockKind::kGain) {
    return {{"factor", {spec.out}}};
  }
  if (spec.kind != BlockKind::kBatchNorm && spec.kind != BlockKind::kSyncBatchNorm) {
    return {};
  }
  return {{"running_mean", {spec.out}}, {"running_var", {spec.out}}, {"num_batches_tracked", {}}};
}

BlockOutput block_output(const BlockSpec& spec, const SampleShape& input) {
  if (input.tokens && spec.kind != BlockKind::kEmbedding && spec.kind != BlockKind::kIdentity) {
    return mismatch(spec, input, "real numbers");
  }
  switch (spec.kind) {
    case BlockKind::kLinear:
      return on_last_dimension(spec, input, spec.in);
    case BlockKind::kLayerNorm:
    case BlockKind::kScale:
    case BlockKind::kGain:
      return on_last_dimension(spec, input, spec.out);
    case BlockKind::kBatchNorm:
    case BlockKind::kSyncBatchNorm:
      if ((input.sizes.size() != 1 && input.sizes.size() != 3) || input.sizes[0] != spec.out) {
        return mismatch(spec, input, fmt::format("[{0}] or [{0}, height, width]", spec.out));
      }
      return {input, ""};
    case BlockKind::kEmbedding:
      if (!input.tokens) {
        return mismatch(spec, input, "tokens, so it comes first");
      }
      return {{{input.sizes[0], spec.out}, false}, ""};
    case BlockKind::kConv2d:
      return conv2d_output(spec, input);
    case BlockKind::kOffset:
      return {{{spec.out}, false}, ""};
    case BlockKind::kFlatten:
      return {{{numel_of(input.sizes)}, false}, ""};
    case BlockKind::kRelu:
    case BlockKind::kTanh:
    case BlockKind::kIdentity:
    case BlockKind::kDetach:
    case BlockKind::kDropout:
    case BlockKind::kAllToAll:
      return {input, ""};
    case BlockKind::kSame:
      break;
  }
  throw InvariantError("a shared block has no shape rule of its own");
}

bool can_be_exact(const BlockSpec& spec) {
  switch (spec.kind) {
    case BlockKind::kTanh:
    case BlockKind::kBatchNorm:
    case BlockKind::kSyncBatchNorm:
    case BlockKind::kLayerNorm:
      return false;
    case BlockKind::kDropout: {
      // Kept values are multiplied by 1 / (1 - rate): a shift if that is a power of two.
      int exponent = 0;
      return std::frexp(1.0 - spec.rate, &exponent) == 0.5;
    }
    default:
      return true;
  }
}

}  // namespace lockstep::harness
