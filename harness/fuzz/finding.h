// SPDX-License-Identifier: Apache-2.0
// What a judged case shows, in so few words that two cases can be said to show the same.
#pragma once

#include <string>

#include "harness/outcome.h"

namespace lockstep::harness::fuzz {

/// "" where the case is as expected; else what came in the place of what was predicted:
/// "diverged/replay/gradient", "deadlock", "error/desync", "crash", "property/bucket_cap",
/// "peer/gradients", "internal_error", "complaint/issued". The kind of the first divergence is part
/// of it, its place is not.
std::string finding_kind(const CaseResult& result);

}  // namespace lockstep::harness::fuzz
