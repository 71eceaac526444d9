// SPDX-License-Identifier: Apache-2.0
// [launch]: the processes of a case, and how it goes for them before they train.
#pragma once

#include <vector>

#include "harness/case.h"
#include "harness/case_facts.h"
#include "harness/run.h"
#include "sim/world.h"

namespace lockstep::harness {

/// Whether the subject ended before it could train.
bool is_failed_launch(const Run& run);

/// The records of a launch that failed somewhere: one per process, at_phase "rendezvous", kFailed
/// or (whoever met its peers) kFinished. If all have met: one per process, with `listens_on` alone.
/// `world`: the schedule, of which `result` tells what became.
std::vector<RankRun> simulate_launch(const Case& value, const sim::WorldOptions& world,
                                     sim::WorldResult& result);

/// Of records per process of which each met its peers, those of the first one's run, by rank.
std::vector<RankRun> of_first_run(const Case& value, std::vector<RankRun> records);

}  // namespace lockstep::harness
