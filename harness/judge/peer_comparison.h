// SPDX-License-Identifier: Apache-2.0
// Does another implementation of DDP do the same, bit for bit and collective for collective?
#pragma once

#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/executor.h"
#include "harness/outcome.h"

namespace lockstep::harness {

/// Where two runs of one case differ, one sentence each; empty if they do not. Per rank at most one
/// sentence for each of: how the rank ended (kind of error, phase, step; collective that it waits
/// in); the first differing number (losses, gradients, parameters, buffers, optimizer state: bits);
/// the first differing collective (kind, numel, dtype).
///
/// The collectives that verify the model at construction are left out: ours compare more.
/// `peer` names the second run in the sentences.
std::vector<std::string> differences(const Run& ours, const Run& theirs, const std::string& peer);

/// Runs `value` on `executor` with ddp.sync = "torch" and compares with `subject`. The reason is
/// that of [expect.torch].
PeerComparison compare_with_torch(const Case& value, const Run& subject, Executor& executor);

/// What is wrong with a comparison: differences without a reason, or a reason without difference.
std::vector<std::string> complaints_about(const PeerComparison& comparison);

}  // namespace lockstep::harness
