// SPDX-License-Identifier: Apache-2.0
// What follows from a case alone, for its checks and for whoever carries it out; without LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness {

/// Those of [launch], or one for each rank; world_size and interface filled in.
std::vector<ProcessSpec> processes_of(const Case& value);

/// Those of [launch], or one that is called "host" and has a loopback interface only.
std::vector<HostSpec> hosts_of(const Case& value);

/// The steps that a rank has inputs for, whatever its script does. Precondition: `steps_of_rank` is
/// empty or has an entry for `rank`.
std::int64_t given_steps(const TrainSpec& train, std::int64_t rank);

/// Inside join: the entry of [[at]] by which a rank evaluates through the wrapper and then leaves,
/// by `leave`, in the same step; ranks without inputs shadow that forward as one of a step more
/// (O1, O3), which no step of the references is. Null: there is none. Precondition: `leave` is in
/// value.at.
const AtSpec* evaluation_before_leaving(const Case& value, const AtSpec& leave);

/// False if the case cannot be judged on `backend`. Over "nccl" those are cases whose sums may
/// depend on the order of additions, which is not known there (more than two ranks and numbers that
/// are not exact), and cases in which a process ends, which NCCL does not notice.
bool runs_on(const Case& value, const std::string& backend);

}  // namespace lockstep::harness
