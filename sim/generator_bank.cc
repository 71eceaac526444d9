// SPDX-License-Identifier: Apache-2.0
// Saving and restoring the engine and the cached half of the last pair of normal samples.
#include "sim/generator_bank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Optional.h>

#include <vector>

namespace lockstep::sim {
namespace {

struct GeneratorState {
  at::mt19937 engine;
  decltype(std::declval<at::CPUGeneratorImpl&>().next_float_normal_sample()) next_float;
  decltype(std::declval<at::CPUGeneratorImpl&>().next_double_normal_sample()) next_double;
};

at::CPUGeneratorImpl& global_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

void save(GeneratorState& state) {
  at::CPUGeneratorImpl& generator = global_generator();
  state.engine = generator.engine();
  state.next_float = generator.next_float_normal_sample();
  state.next_double = generator.next_double_normal_sample();
}

void restore(const GeneratorState& state) {
  at::CPUGeneratorImpl& generator = global_generator();
  generator.set_engine(state.engine);
  generator.set_next_float_normal_sample(state.next_float);
  generator.set_next_double_normal_sample(state.next_double);
}

}  // namespace

struct GeneratorBank::States {
  std::vector<GeneratorState> by_slot;  // slot 0: the controller; slot r + 1: rank r
  GeneratorState& of(std::int64_t rank) { return by_slot[static_cast<std::size_t>(rank + 1)]; }
};

GeneratorBank::GeneratorBank(std::int64_t num_ranks) : states_(std::make_unique<States>()) {
  GeneratorState initial;
  save(initial);
  states_->by_slot.assign(static_cast<std::size_t>(num_ranks + 1), initial);
}

GeneratorBank::~GeneratorBank() = default;

void GeneratorBank::swap(std::int64_t from, std::int64_t to) {
  save(states_->of(from));
  restore(states_->of(to));
}

}  // namespace lockstep::sim
