// SPDX-License-Identifier: Apache-2.0
// Models with fewer blocks.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/fuzz/shrink/block_edits.h"
#include "harness/fuzz/shrink/reductions.h"

namespace lockstep::harness::fuzz {

namespace {

void set_all_sizes(ModelSpec& model, std::int64_t size) {
  change_blocks(model, [size](BlockSpec& spec) {
    if (spec.in > 0) spec.in = size;
    if (spec.out > 0) spec.out = size;
    if (spec.kernel > 0) spec.kernel = 1;
  });
}

/// Without these blocks; where what is left does not fit, with equal sizes everywhere.
void add_without(Candidates& candidates, const std::set<std::string>& names) {
  if (candidates.add([&](Case& value) { drop_blocks(value, names); })) return;
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}}) {
    const bool added = candidates.add([&](Case& value) {
      drop_blocks(value, names);
      set_all_sizes(value.model, size);
      refit(value);
    });
    if (added) return;
  }
}

void drop_layers(Candidates& candidates) {
  const std::vector<std::int64_t>& widths = candidates.value().model.widths;
  for (std::size_t chunk = widths.size() - 2; chunk >= 1;
       chunk = chunk == 1 ? 0 : (chunk + 1) / 2) {
    for (std::size_t begin = 0; begin < widths.size(); begin += chunk) {
      candidates.add([&](Case& value) {
        ModelSpec model = value.model;
        const auto first = model.widths.begin() + static_cast<std::ptrdiff_t>(begin);
        const std::size_t count = std::min(chunk, widths.size() - begin);
        model.widths.erase(first, first + static_cast<std::ptrdiff_t>(count));
        if (model.widths.size() >= 2) replace_model(value, std::move(model));
      });
    }
  }
}

}  // namespace

void reduce_model(Candidates& candidates) {
  using Widths = std::vector<std::int64_t>;
  for (const Widths& widths : {Widths{1, 1}, Widths{2, 2}, Widths{1, 1, 1}, Widths{2, 2, 2}}) {
    candidates.add([&](Case& value) {
      ModelSpec model;
      model.widths = widths;
      replace_model(value, std::move(model));
    });
  }
  candidates.add([](Case& value) { make_mlp(value); });
}

void reduce_blocks(Candidates& candidates) {
  const ModelSpec& model = candidates.value().model;
  if (model.kind == "mlp") {
    drop_layers(candidates);
    return;
  }
  for (std::size_t chunk = model.blocks.size() - 1; chunk >= 1;
       chunk = chunk == 1 ? 0 : (chunk + 1) / 2) {
    for (std::size_t begin = 0; begin < model.blocks.size(); begin += chunk) {
      std::set<std::string> names;
      for (std::size_t i = begin; i < std::min(model.blocks.size(), begin + chunk); ++i) {
        names.insert(model.blocks[i].first);
      }
      add_without(candidates, names);
    }
  }
  for (const std::vector<std::string>& stage : model.forward) {
    if (stage.size() > 1) add_without(candidates, {stage.begin(), stage.end()});
  }
}

}  // namespace lockstep::harness::fuzz
