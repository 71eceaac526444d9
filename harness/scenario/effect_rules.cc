// SPDX-License-Identifier: Apache-2.0
// Entries of [[at]] that set what is set already: they would count as carried out.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/model.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {

namespace {

// The learning rate and what is frozen on one rank, as the script changes them.
class State {
 public:
  explicit State(const Case& value) : model_(value.model), lr_(value.train.optimizer.lr) {
    for (const std::string& name : model_.frozen) {
      set(name, true);
    }
  }

  /// Whether anything is another than before.
  bool apply(const AtSpec& at) {
    bool changes = at.lr && *at.lr != lr_;
    lr_ = at.lr.value_or(lr_);
    for (const std::string& name : at.freeze) {
      changes = set(name, true) || changes;
    }
    for (const std::string& name : at.unfreeze) {
      changes = set(name, false) || changes;
    }
    return changes;
  }

 private:
  bool set(const std::string& name, bool frozen) {
    bool changes = false;
    for (const std::string& parameter : parameters_of(model_, name)) {
      changes =
          (frozen ? frozen_.insert(parameter).second : frozen_.erase(parameter) > 0) || changes;
    }
    return changes;
  }

  const ModelSpec& model_;
  double lr_;
  std::set<std::string> frozen_;
};

bool sets_state(const AtSpec& at) {
  return at.lr.has_value() || !at.freeze.empty() || !at.unfreeze.empty();
}

std::int64_t place_of(const AtSpec& at) {
  constexpr const char* kPlaces[] = {"before_forward", "after_forward", "after_backward",
                                     "after_step"};
  const auto place = std::find(std::begin(kPlaces), std::end(kPlaces), at.when);
  const std::int64_t last = std::end(kPlaces) - std::begin(kPlaces) - 1;
  return (place == std::end(kPlaces) - 1 ? 1'000'000 : 0) +
         at.micro_batch.value_or(0) * (last + 1) + (place - std::begin(kPlaces));
}

// The entries in the order in which a step comes to them.
std::vector<std::size_t> in_order(const Case& value) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    if (sets_state(value.at[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return place_of(value.at[a]) < place_of(value.at[b]);
  });
  return order;
}

}  // namespace

void check_without_effect(const Case& value, std::vector<CaseFinding>& findings) {
  const std::vector<std::size_t> order = in_order(value);
  // When those with a time of their own happen is not known from the file.
  const bool any_by_time = std::any_of(
      order.begin(), order.end(), [&](std::size_t index) { return value.at[index].from_ms > 0; });
  if (any_by_time) {
    return;
  }
  std::set<std::size_t> idle(order.begin(), order.end());
  for (std::int64_t rank = 0; rank < value.world.ranks && !idle.empty(); ++rank) {
    State state(value);
    for (std::int64_t step = 0; step < value.train.steps; ++step) {
      for (const std::size_t index : order) {
        const AtSpec& at = value.at[index];
        if (covers(at.ranks, rank) && covers(at.steps, step) && state.apply(at)) {
          idle.erase(index);
        }
      }
    }
  }
  for (const std::size_t index : idle) {
    const AtSpec& at = value.at[index];
    const char* const key = at.lr ? "lr" : at.freeze.empty() ? "unfreeze" : "freeze";
    const char* const what = at.lr               ? "the learning rate is that already"
                             : at.freeze.empty() ? "nothing of this is frozen there"
                                                 : "all of this is frozen already";
    findings.push_back({{fmt::format("at.{}.{}", index, key)},
                        fmt::format("this [[at]] changes nothing: {}; give it another value or "
                                    "place, or leave it out",
                                    what)});
  }
}

}  // namespace lockstep::harness
