// SPDX-License-Identifier: Apache-2.0
// What a judged case shows, in so few words that two cases can be said to show the same.
#pragma once

#include <string>

#include "harness/outcome.h"

namespace lockstep::harness::fuzz {

/// "" where the case is as expected, or was not run; else what came in the place of what was
/// predicted. The first of these that fits:
/// - "internal_error/signal", "internal_error/time": the process that judged it died, or took too
///   long; "internal_error": anything else of the kind.
/// - Another outcome: "diverged/replay/gradient", "error/desync", "deadlock", "crash", "equal",
///   "within_bound". The kind of the first divergence is part of it, its place is not.
/// - The outcome that was predicted, with other details: "complaint/waiting", "complaint/planted".
/// - "peer/gradient", "peer/collectives": what PyTorch's reducer did otherwise;
///   "peer/known" where it may (judge/peer_rules.h), so that nothing unknown is shrunk to it.
/// - "property/bucket_cap": a relation that is broken.
std::string finding_kind(const CaseResult& result);

/// The property of a kind that is one's; "" for others. A case that is judged while a finding is
/// shrunk has the kind for its name, and is held against this property in the place of drawn ones:
/// which ones are drawn depends on all of a case's text.
std::string property_of(const std::string& kind);

/// The property by which a campaign named this file of its corpus, so that whoever judges it again
/// holds it against that, whichever are drawn; "" for other files.
std::string property_of_file(const std::string& path);

}  // namespace lockstep::harness::fuzz
