// SPDX-License-Identifier: Apache-2.0
// The topics of a script, drawn one after the other: each over those before it, none of them bound
// by what goes together. make_valid (valid.h) sees to that.
#pragma once

#include "harness/case.h"
#include "harness/fuzz/draw/dice.h"
#include "harness/fuzz/draw/space.h"

namespace lockstep::harness::fuzz {

/// Ranks, and whether all numbers are exact.
void draw_world(Case& value, const Space& space, Dice& dice);
void draw_model(Case& value, const Space& space, Dice& dice);
/// [train] and [data].
void draw_training(Case& value, const Space& space, Dice& dice);
void draw_ddp(Case& value, const Space& space, Dice& dice);
void draw_events(Case& value, const Space& space, Dice& dice);
/// [launch], mostly none.
void draw_launch(Case& value, const Space& space, Dice& dice);
void draw_schedule(Case& value, const Space& space, Dice& dice);

}  // namespace lockstep::harness::fuzz
