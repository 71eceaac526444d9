// SPDX-License-Identifier: Apache-2.0
// Stand-ins for what is written elsewhere.
#include "harness/fuzz/draw.h"
#include "harness/fuzz/finding.h"
#include "harness/fuzz/properties.h"
#include "harness/fuzz/shrink.h"

namespace lockstep::harness::fuzz {

std::string finding_kind(const CaseResult& result) {
  if (result.skipped) return "";
  if (!result.internal_error.empty()) {
    if (result.outcome.kind == OutcomeKind::kCrash) return "internal_error/signal";
    return result.internal_error.rfind("not judged within", 0) == 0 ? "internal_error/time"
                                                                    : "internal_error";
  }
  if (result.as_expected) return "";
  if (!result.broken_properties.empty()) return "property/" + result.broken_properties.front().name;
  return to_string(result.outcome.kind);
}

Shrunk shrink(const Case& found, const CaseResult& result, const JudgeMany&, const ShrinkLimits&) {
  return {found, result, 0, 0, false};
}

std::vector<BrokenProperty> broken_properties(const Case&, Executor&, std::int64_t) { return {}; }

Case redraw(const Case&, const Space& space, std::uint64_t seed, std::uint64_t index) {
  return draw_script(space, seed, index);
}

}  // namespace lockstep::harness::fuzz
