// SPDX-License-Identifier: Apache-2.0
// Mistakes that are planted behind the judge's back.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/fuzz/shrink/shrink.h"

namespace lockstep::harness::fuzz {

/// Puts a mistake into what is run.
using Plant = std::function<void(Case&)>;

/// A fault of this kind without anything else said of it.
Plant fault(const std::string& kind);

Case case_of(const std::string& text);

/// The case with a mistake in the subject, against what was expected without.
CaseResult judge_planted(const Case& value, const Plant& plant);

JudgeMany judge_many(const Plant& plant);

/// Time is no limit: how far a search comes would depend on the machine.
inline ShrinkLimits without_time_limit() {
  ShrinkLimits limits;
  limits.seconds_max = 1e9;
  return limits;
}

struct PlantedFinding {
  Case value;
  CaseResult result;
};

/// A large script without a mistake, as one is drawn.
extern const char* const kLarge;
/// The same without what a rank waits for at the end of every backward.
extern const char* const kLargeMlp;

/// What the mistake makes of the script, which is as predicted without it.
PlantedFinding find(const Plant& plant, const char* text);

std::int64_t num_lines(const std::string& text);

}  // namespace lockstep::harness::fuzz
