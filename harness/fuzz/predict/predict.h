// SPDX-License-Identifier: Apache-2.0
// What must come out of a script, by the rules alone: nothing is run.
#pragma once

#include <optional>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// The expectation of a case with its own ddp.sync; `value.expect` is not looked at. Nothing where
/// the rules do not say. Precondition: apart from `expect`, check_case(value) finds nothing.
std::optional<ExpectSpec> predict(const Case& value);

/// The same for a script without a mistake: every oracle that is defined for it.
ExpectSpec predict_valid(const Case& value);

/// The same for a script with one: an [[at]] that disturbs, a [[fault]], or an option that is
/// missing. Nothing where the rules do not say, or where nothing of it can be seen.
std::optional<ExpectSpec> predict_broken(const Case& value);

/// Whether anything in `value` is a mistake.
bool has_mistake(const Case& value);

/// Puts what is predicted in the place of `value.expect`, and takes [expect.*] off. False: there is
/// no prediction, or the case contradicts itself; then `value` is not worth running.
bool expect_as_predicted(Case& value);

}  // namespace lockstep::harness::fuzz
