// SPDX-License-Identifier: Apache-2.0
// Saving to and loading from memory.
#include "harness/saved_state.h"

#include <torch/serialize.h>

#include <sstream>

namespace lockstep::harness {
namespace {

template <typename T>
std::string saved(const T& value) {
  torch::serialize::OutputArchive archive;
  value.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

template <typename T>
void load(const std::string& bytes, T& value) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  value.load(archive);
}

}  // namespace

SavedState save_state(const GraphModel& model, const Optimizer& optimizer) {
  return {saved(model), saved(optimizer)};
}

void load_model(const SavedState& state, GraphModel& model) { load(state.model, model); }

void load_optimizer(const SavedState& state, Optimizer& optimizer) {
  load(state.optimizer, optimizer);
}

}  // namespace lockstep::harness
