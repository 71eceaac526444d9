// SPDX-License-Identifier: Apache-2.0
// The list of properties, and which of them a case is held against.
#include "harness/fuzz/properties/properties.h"

#include <xxhash.h>

#include <algorithm>

#include "core/rng.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/properties/invariants.h"
#include "harness/fuzz/properties/relations.h"
#include "harness/fuzz/properties/run_difference.h"
#include "harness/judge/judge_schedules.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {

const std::vector<Property>& properties() {
  static const std::vector<Property> kProperties = [] {
    std::vector<Property> all;
    for (const auto* list :
         {&option_relations(), &script_relations(), &run_invariants(), &event_invariants()}) {
      all.insert(all.end(), list->begin(), list->end());
    }
    all.push_back(layout_invariant());
    all.push_back(sampling_invariant());
    return all;
  }();
  return kProperties;
}

namespace {

std::vector<const Property*> applying(const Case& value, const Executor& executor) {
  std::vector<const Property*> all;
  if (has_mistake(value)) {
    return all;
  }
  for (const Property& property : properties()) {
    const bool can_run = !property.changes_program || executor.takes_changed_programs();
    if (can_run && property.applies(value)) {
      all.push_back(&property);
    }
  }
  return all;
}

std::vector<BrokenProperty> broken_of(const std::vector<const Property*>& chosen, const Case& value,
                                      Executor& executor) {
  if (chosen.empty()) {
    return {};
  }
  const bool tries_many = value.schedule.runs > 1 || value.schedule.policy == "exhaustive";
  const Run subject =
      executor.execute(compile_subject(tries_many ? on_schedule(value, "") : value));
  if (!ended_well(subject)) {
    return {};
  }
  std::vector<BrokenProperty> broken;
  for (const Property* property : chosen) {
    const std::string difference = property->difference(value, subject, executor);
    if (!difference.empty()) {
      broken.push_back({property->name, difference});
    }
  }
  return broken;
}

}  // namespace

std::vector<BrokenProperty> broken_properties(const Case& value, Executor& executor,
                                              std::int64_t count) {
  if (count == 0) {
    return {};
  }
  std::vector<const Property*> chosen = applying(value, executor);
  if (count > 0 && count < static_cast<std::int64_t>(chosen.size())) {
    const std::string text = print_case(value);
    CounterRng rng(XXH3_64bits(text.data(), text.size()), RngStream::kFuzz);
    std::vector<const Property*> few;
    for (const std::int64_t at : rng.permutation(static_cast<std::int64_t>(chosen.size()))) {
      few.push_back(chosen[static_cast<std::size_t>(at)]);
    }
    few.resize(static_cast<std::size_t>(count));
    chosen = std::move(few);
  }
  return broken_of(chosen, value, executor);
}

std::vector<BrokenProperty> broken_property(const Case& value, Executor& executor,
                                            const std::string& name) {
  std::vector<const Property*> chosen;
  for (const Property* property : applying(value, executor)) {
    if (property->name == name) chosen.push_back(property);
  }
  return broken_of(chosen, value, executor);
}

}  // namespace lockstep::harness::fuzz
