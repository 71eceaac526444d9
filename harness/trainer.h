// SPDX-License-Identifier: Apache-2.0
// The one training loop: every subject and every reference runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "harness/dataset.h"
#include "harness/disturbances.h"
#include "harness/graph_model.h"
#include "harness/optimizer.h"
#include "harness/position.h"
#include "harness/program.h"
#include "harness/run.h"
#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {

/// One copy of the model and the rank whose part it plays.
struct Replica {
  const RankProgram* program = nullptr;
  std::shared_ptr<GraphModel> model;
};

/// Everything a loop needs; references outlive it.
struct TrainerParts {
  const Program& program;
  const Dataset& data;
  std::vector<Replica> replicas;  ///< updated together: the optimizer steps the first one's
  GradientSync& sync;
  Optimizer& optimizer;
  Communicator* communicator = nullptr;  ///< scripted collectives; null in references
  Disturbances* disturbances = nullptr;  ///< null in references
  Observer* observer = nullptr;
  Position& position;
};

/// Steps first <= step < end.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

/// Trains to the end of the range or program (kFinished), until the script leaves the loop (kLeft),
/// or until something is thrown. A program may be trained range after range, with the same parts or
/// with others. With join a rank is at the end when all are. Replicas with fewer steps than others
/// sit the rest out; with the first one are the numbers of every step.
///
/// `records` gets one RankRun per replica, filled as steps complete, so that what was done before
/// an error is there. Replicas after the first record losses and buffers only.
/// Errors: ScriptError; what DDP, LibTorch and the communicator throw.
Ending train(const TrainerParts& parts, std::vector<RankRun>& records, StepRange range = {});

}  // namespace lockstep::harness
