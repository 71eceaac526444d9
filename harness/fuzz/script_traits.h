// SPDX-License-Identifier: Apache-2.0
// What rules ask of a script.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

bool any_event(const Case& value, bool (*holds)(const AtSpec&));

/// Some rank has fewer steps than another, as far as the script tells (steps_by_rank).
bool is_uneven(const Case& value);

/// Some stage names the block; where no stages are listed each block is one.
bool is_in_a_stage(const ModelSpec& model, const std::string& block);

/// Nothing in it is bound to a place or time that another option moves, and nothing but what the
/// training loop itself does makes or unmakes gradients: every step is forwards, backwards and one
/// update. No mistake is in it, and no launch.
bool is_plain(const Case& value);

/// Some parameters may be without gradient on some rank in some step or micro-batch and have one
/// elsewhere.
bool use_varies(const Case& value);

/// Steps of several micro-batches reduce in each of them (H1, H3).
bool reduces_each_micro_batch(const Case& value);

/// Gradients are undefined or zeros when a step begins.
bool clears_gradients(const Case& value);

/// Each forward has one backward, and that is the one which reduces.
bool one_backward_per_window(const Case& value);

/// Two contributions are added in either order with the same result, and so are any number of them
/// if nothing is ever rounded.
bool sums_commute(const Case& value);

/// A product with the divisor's reciprocal is the quotient, bit for bit.
bool divides_by_power_of_two(const Case& value);

/// The hook treats every number on its own and is the average of the contributions: of
/// "all_reduce", "all_reduce_copy" and none.
bool hook_averages(const Case& value);
/// It rounds gradients to another type and then averages them.
bool hook_casts(const Case& value);
/// It leaves gradients to their ranks: at once, or after a first step (N3).
bool hook_goes_local(const Case& value);
/// It treats every number on its own, and zeros stay zeros; it may also leave them as they are.
bool hook_is_elementwise(const Case& value);

bool has_buffers(const Case& value);
/// Three outputs or more may be one tensor: DDP's sink adds up what they give to it in their order,
/// autograd alone in another (E11). Two contributions commute.
bool rounds_by_sink(const Case& value);
/// The broadcast of a later forward changes the statistics that an earlier one has saved for its
/// backward, on all ranks but 0 (J6).
bool overwrites_saved_buffers(const Case& value);
bool has_sparse(const Case& value);
/// Parameters, or what flows between blocks, in more than one dtype.
bool has_other_dtypes(const Case& value);

/// First steps of the wrappers that live one after the other: 0, and steps before which the script
/// reloads.
std::vector<std::int64_t> first_steps_of_wrappers(const Case& value);

}  // namespace lockstep::harness::fuzz
