// SPDX-License-Identifier: Apache-2.0
// What must come out of a script with a mistake.
#include "harness/fuzz/predict.h"

namespace lockstep::harness::fuzz {

bool has_mistake(const Case& value) { return !value.faults.empty(); }

std::optional<ExpectSpec> predict_broken(const Case&) { return std::nullopt; }

}  // namespace lockstep::harness::fuzz
