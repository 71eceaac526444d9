// SPDX-License-Identifier: Apache-2.0
// A model description with every name resolved; what the checks and the module are both built from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/block_spec.h"
#include "harness/case.h"
#include "harness/model.h"

namespace lockstep::harness {

struct PlannedBlock {
  std::string name;
  BlockSpec spec;          ///< of the module behind the block: never kSame
  std::int64_t owner = 0;  ///< block whose module this is; its own index unless "same NAME"
};

/// One registered name of a parameter. Shared modules and ties give a tensor several names.
struct ParameterSlot {
  std::string name;   ///< "layer0.weight"
  std::string local;  ///< "weight"
  std::int64_t block = 0;
  Sizes sizes;
  std::int64_t tensor = 0;  ///< equal numbers: the same tensor
};

struct ModelPlan {
  std::vector<PlannedBlock> blocks;
  std::vector<std::vector<std::int64_t>> stages;  ///< block indices
  std::vector<ParameterSlot> slots;               ///< order of registration
  std::vector<bool> frozen;                       ///< by ParameterSlot::tensor
  std::vector<ModelFinding> findings;             ///< mistakes that need no shapes to be seen
};

/// Order: a tensor's number is the index of the slot that holds its initial values.
ModelPlan plan_model(const ModelSpec& model);

std::optional<std::int64_t> find_block(const ModelPlan& plan, const std::string& name);

/// Slots that `name` stands for: one parameter ("a.weight"), or all of a block ("a"); may be empty.
std::vector<std::int64_t> find_slots(const ModelPlan& plan, const std::string& name);

/// A route with its names looked up.
struct PlannedRoute {
  std::vector<std::vector<std::int64_t>> stages;  ///< blocks that run, per stage that is reached
  std::vector<std::int64_t> heads_run;            ///< head indices of the outputs, in order
  std::vector<bool> blocks_run;                   ///< by block index
};
/// Names that `plan` does not hold are passed over.
PlannedRoute plan_route(const ModelPlan& plan, const Route& route);

/// The input that the first block asks for. Empty if no block that runs fixes a size.
std::optional<InputShape> plan_input(const ModelPlan& plan, const DataSpec& data);

/// Shapes along a route, or the first block that does not take what it gets.
struct ShapeTrace {
  std::vector<Sizes> heads;  ///< as heads_run
  std::string block;         ///< where `error` arose
  std::string error;
};
/// Precondition: `plan` has no findings.
ShapeTrace trace_shapes(const ModelPlan& plan, const PlannedRoute& route, const InputShape& input);

}  // namespace lockstep::harness
