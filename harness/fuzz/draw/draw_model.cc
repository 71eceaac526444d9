// SPDX-License-Identifier: Apache-2.0
// Draws models: widths of an mlp, or a graph that grows stage by stage.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "harness/fuzz/draw/draw_topics.h"
#include "harness/model_plan.h"

namespace lockstep::harness::fuzz {
namespace {

constexpr std::int64_t kWidthMax = 6;
constexpr std::int64_t kSequenceTokens = 2;
constexpr std::int64_t kImagePixels = 4;

/// What flows from one stage to the next.
enum class Flow { kFlat, kTokens, kImage };

class Graph {
 public:
  Graph(Case& value, Dice& dice)
      : model_(value.model),
        data_(value.data),
        dice_(dice),
        exact_(value.data.exact),
        mixed_(model_.dtype == "float32" && !exact_ && dice.chance(20)),
        complex_(model_.dtype == "float32" && !exact_ && dice.chance(10)),
        sparse_(dice.chance(60)),
        checkpoints_(dice.chance(25)),
        batch_norm_(!exact_ && dice.chance(25)),
        sync_batch_norm_(!exact_ && !batch_norm_ && dice.chance(15)),
        dropout_(!sync_batch_norm_ && dice.chance(12)),
        all_to_all_(!dropout_ && dice.chance(8)) {}

  void draw() {
    first_stage();
    const std::int64_t num_stages = dice_.between(0, exact_ ? 1 : 3);
    for (std::int64_t stage = 0; stage < num_stages; ++stage) {
      if (dice_.chance(40)) {
        branches();
      } else {
        single();
      }
    }
    // Buffers are what broadcasts, join and reloads have to carry beside parameters.
    if (flow_ != Flow::kTokens && batch_norm_) {
      model_.forward.push_back({kept(of_width("batch_norm"))});
    }
    heads();
    spare();
  }

 private:
  std::int64_t some_width() {
    return exact_ ? dice_.one_of({1, 2, 4}) : dice_.between(1, kWidthMax);
  }

  // Blocks are called by their kind and a number.
  std::string add(const std::string& text) {
    const std::string name =
        fmt::format("{}{}", text.substr(0, text.find(' ')), model_.blocks.size());
    model_.blocks.emplace_back(name, text);
    return name;
  }

  std::string with_options(std::string text, bool has_parameters) {
    if (mixed_ && has_parameters && text.find("complex64") == std::string::npos &&
        dice_.chance(40)) {
      text += " float64";
    }
    if (checkpoints_ && dice_.chance(50)) {
      const bool first = model_.forward.empty();
      text += !first && dice_.chance(50) ? " checkpoint_reentrant" : " checkpoint";
    }
    return text;
  }

  std::string linear(std::int64_t out) {
    const bool is_complex = complex_ && out % 2 == 0 && dice_.chance(50);
    std::string text = fmt::format("linear {} {}", width_, is_complex ? out / 2 : out);
    text += dice_.chance(25) ? " no_bias" : "";
    text += is_complex ? " complex64" : "";
    return add(with_options(std::move(text), true));
  }

  std::string of_width(const char* kind) {
    return add(with_options(fmt::format("{} {}", kind, width_), std::string(kind) != "gain"));
  }

  void first_stage() {
    const std::int64_t kind = dice_.below(10);
    if (kind < 2) {
      flow_ = Flow::kTokens;
      data_.sequence_tokens = dice_.between(1, kSequenceTokens);
      embeddings();
    } else if (kind < 4) {
      flow_ = Flow::kImage;
      const std::int64_t kernel = dice_.between(1, 3);
      data_.image_pixels = dice_.between(kernel, kImagePixels);
      side_ = data_.image_pixels - kernel + 1;
      width_ = some_width();
      model_.forward.push_back(
          {add(with_options(fmt::format("conv2d {} {} {}{}", dice_.between(1, 2), width_, kernel,
                                        dice_.chance(25) ? " no_bias" : ""),
                            true))});
    } else {
      flow_ = Flow::kFlat;
      width_ = some_width();
      if (kind == 4) {
        model_.forward.push_back({preserving()});
        if (!plan_input(plan_model(model_), data_)) model_.forward.front() = {of_width("scale")};
      } else if (kind == 5) {
        branches();
      } else {
        const std::int64_t out = some_width();
        model_.forward.push_back({linear(out)});
        width_ = out;
      }
    }
  }

  void embeddings() {
    width_ = some_width();
    const std::int64_t vocabulary = dice_.between(2, 6);
    std::vector<std::string> stage;
    const std::int64_t count = dice_.chance(25) ? 2 : 1;
    for (std::int64_t i = 0; i < count; ++i) {
      if (i > 0 && dice_.chance(40)) {
        stage.push_back(add("same " + stage.front()));
        continue;
      }
      std::string text = fmt::format("embedding {} {}{}", vocabulary, width_,
                                     sparse_ && dice_.chance(60) ? " sparse" : "");
      stage.push_back(add(with_options(std::move(text), true)));
    }
    model_.forward.push_back(stage);
  }

  // A block behind which the shape is what it was.
  std::string preserving() {
    std::vector<std::string> kinds = {"relu", "identity", "gain", "gain"};
    // Behind an image these would look at rows of pixels.
    if (flow_ != Flow::kImage) {
      kinds.insert(kinds.end(), {"linear", "linear", "linear", "scale", "scale"});
      if (!exact_) kinds.emplace_back("layer_norm");
    } else {
      kinds = {"relu", "identity"};
    }
    if (!exact_) kinds.emplace_back("tanh");
    if (flow_ != Flow::kTokens && batch_norm_) kinds.insert(kinds.end(), 2, "batch_norm");
    if (flow_ != Flow::kTokens && sync_batch_norm_) kinds.insert(kinds.end(), 3, "sync_batch_norm");
    if (dropout_) kinds.insert(kinds.end(), 3, "dropout");
    if (all_to_all_) kinds.insert(kinds.end(), 3, "all_to_all");
    const auto [name, width] = reusable_.empty() || !dice_.chance(20)
                                   ? std::pair<std::string, std::int64_t>()
                                   : dice_.one_of(reusable_);
    if (!name.empty() && width == width_ && flow_ != Flow::kImage) return add("same " + name);
    const std::string kind = dice_.one_of(kinds);
    if (kind == "linear") return kept(linear(width_));
    if (kind == "dropout") return add(with_options(exact_ ? "dropout 0.5" : "dropout 0.25", false));
    if (kind == "scale" || kind == "layer_norm" || kind == "batch_norm") {
      return kept(of_width(kind.c_str()));
    }
    if (kind == "gain") return of_width("gain");
    if (kind == "sync_batch_norm") {
      return add(fmt::format("sync_batch_norm {}", width_));
    }
    return kind == "all_to_all" ? add(kind) : add(with_options(kind, false));
  }

  std::string kept(std::string name) {
    if (flow_ == Flow::kFlat) reusable_.emplace_back(name, width_);
    return name;
  }

  void single() {
    const std::int64_t choice = dice_.below(10);
    if (flow_ != Flow::kFlat && choice < 4) {
      flatten();
    } else if (flow_ == Flow::kImage || choice < 5) {
      model_.forward.push_back({preserving()});
    } else if (choice == 5 && flow_ == Flow::kFlat && dice_.chance(25)) {
      model_.forward.push_back({of_width("offset")});
    } else {
      const std::int64_t out = some_width();
      model_.forward.push_back({linear(out)});
      width_ = out;
    }
  }

  void flatten() {
    model_.forward.push_back({add("flatten")});
    width_ *= flow_ == Flow::kImage ? side_ * side_ : data_.sequence_tokens;
    flow_ = Flow::kFlat;
  }

  // Blocks on the same input, whose outputs are added up.
  void branches() {
    const std::int64_t count = dice_.between(2, 3);
    std::vector<std::string> stage;
    const bool keeps = flow_ == Flow::kImage || dice_.chance(50);
    const std::int64_t out = keeps ? width_ : some_width();
    for (std::int64_t i = 0; i < count; ++i) {
      if (!keeps) {
        stage.push_back(linear(out));
      } else if (i > 0 && flow_ == Flow::kFlat && dice_.chance(8)) {
        stage.push_back(of_width("offset"));
      } else if (i > 0 && dice_.chance(6)) {
        stage.push_back(add("detach"));
      } else {
        stage.push_back(preserving());
      }
    }
    model_.forward.push_back(stage);
    if (model_.forward.size() == 1 && !plan_input(plan_model(model_), data_)) {
      model_.forward.front().push_back(of_width("scale"));
    }
    width_ = out;
  }

  void heads() {
    if (flow_ == Flow::kImage || (flow_ == Flow::kTokens && dice_.chance(40))) flatten();
    const std::int64_t count = dice_.chance(35) ? dice_.between(2, 3) : 1;
    if (count == 1 && dice_.chance(15)) return;  // what is there is the output
    std::vector<std::string> stage;
    for (std::int64_t i = 0; i < count; ++i) {
      if (i > 0 && flow_ == Flow::kFlat && dice_.chance(8)) {
        stage.push_back(of_width("offset"));
      } else if (i > 0 && dice_.chance(15)) {
        stage.push_back(of_width("scale"));
      } else if (i > 0 && !exact_ && dice_.chance(5)) {
        stage.push_back(add(fmt::format("linear {} 0", width_)));
      } else {
        stage.push_back(linear(some_width()));
      }
    }
    model_.forward.push_back(stage);
  }

  // It exists and no stage names it.
  void spare() {
    if (!dice_.chance(15)) return;
    const std::string text =
        dice_.one_of({"linear 2 2", "scale 3", "linear 2 0", "gain 2", "embedding 3 2"});
    const auto place = dice_.below(static_cast<std::int64_t>(model_.blocks.size()) + 1);
    // In front of all others nothing can be "same" as it.
    model_.blocks.insert(model_.blocks.begin() + place, {"spare", text});
  }

  ModelSpec& model_;
  DataSpec& data_;
  Dice& dice_;
  bool exact_, mixed_, complex_, sparse_, checkpoints_;
  bool batch_norm_, sync_batch_norm_, dropout_, all_to_all_;
  Flow flow_ = Flow::kFlat;
  std::int64_t width_ = 1;
  std::int64_t side_ = 1;  ///< of an image
  std::vector<std::pair<std::string, std::int64_t>> reusable_;
};

void draw_mlp(Case& value, Dice& dice) {
  ModelSpec& model = value.model;
  const bool exact = value.data.exact;
  model.widths.clear();
  const std::int64_t count = dice.between(2, exact ? 3 : 4);
  for (std::int64_t i = 0; i < count; ++i) {
    model.widths.push_back(exact ? dice.one_of({1, 2, 4}) : dice.between(1, kWidthMax));
  }
  model.activation = dice.one_of({"relu", exact ? "identity" : "tanh", "identity"});
  model.bias = dice.chance(75);
}

// Two parameters of one shape become one.
void tie(Case& value, Dice& dice) {
  const ModelPlan plan = plan_model(value.model);
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t a = 0; a < plan.slots.size(); ++a) {
    const BlockSpec& of_a = plan.blocks[static_cast<std::size_t>(plan.slots[a].block)].spec;
    for (std::size_t b = 0; b < plan.slots.size(); ++b) {
      const BlockSpec& of_b = plan.blocks[static_cast<std::size_t>(plan.slots[b].block)].spec;
      if (plan.slots[a].tensor != plan.slots[b].tensor &&
          plan.slots[a].sizes == plan.slots[b].sizes && of_a.dtype == of_b.dtype && !of_a.sparse &&
          !of_b.sparse) {
        pairs.emplace_back(a, b);
      }
    }
  }
  if (pairs.empty()) return;
  const auto [a, b] = dice.one_of(pairs);
  value.model.tied.push_back({plan.slots[a].name, plan.slots[b].name});
}

void freeze(Case& value, Dice& dice) {
  const ModelPlan plan = plan_model(value.model);
  const ParameterSlot& slot = dice.one_of(plan.slots);
  const std::string& block = plan.blocks[static_cast<std::size_t>(slot.block)].name;
  value.model.frozen = {dice.chance(50) ? slot.name : block};
}

}  // namespace

void draw_model(Case& value, const Space&, Dice& dice) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    value.model = ModelSpec();
    value.data.sequence_tokens = DataSpec().sequence_tokens;
    value.data.image_pixels = DataSpec().image_pixels;
    value.model.dtype = dice.chance(value.data.exact ? 60 : 25) ? "float64" : "float32";
    if (dice.chance(20)) {
      draw_mlp(value, dice);
    } else {
      value.model.kind = "graph";
      Graph(value, dice).draw();
    }
    if (plan_model(value.model).slots.empty()) continue;
    if (dice.chance(15)) tie(value, dice);
    if (dice.chance(20)) freeze(value, dice);
    DataSpec regression = value.data;
    regression.kind = "regression";
    if (check_model(value.model, regression).empty()) return;
  }
  value.model = ModelSpec();
}

}  // namespace lockstep::harness::fuzz
