// SPDX-License-Identifier: Apache-2.0
// Scripts so plain that their rules are few: whatever goes wrong in one is due to its mistake.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// What the rules want to know of such a script.
struct Settled {
  std::vector<std::string> trained;  ///< parameters that the reducer has, in order of registration
  std::int64_t first_buckets = 1;    ///< of the first synchronised iteration (C11, C12)
  std::int64_t later_buckets = 1;    ///< after the rebuild, whatever the order of gradients
  std::int64_t num_buffers = 0;
  std::int64_t buffer_groups = 0;  ///< dtypes of buffers: so many broadcasts
};

/// Nothing where numbers might come out alike by chance (dead activations, exact or given data, a
/// rate of 0), where the number of buckets depends on the order of gradients, or where something is
/// asked for that the rules of broken scripts do not follow (ties, hooks but for planted ones,
/// several forwards, agreement, other losses). Precondition: check_case finds nothing.
std::optional<Settled> settle(const Case& value);

/// The same but for the model and the buckets that come of it.
bool settles_but_for_its_model(const Case& value);

/// Parameters that are to be trained and have no gradient in a backward, because no forward of the
/// micro-batch runs their blocks; sorted.
std::vector<std::string> left_out(const Case& value, std::int64_t rank, std::int64_t step,
                                  std::int64_t micro);

/// Whether all ranks of a list do it: an empty one stands for all.
bool are_all(const Case& value, const std::vector<std::int64_t>& ranks);

/// Micro-batches of a rank's step.
std::int64_t micro_batches_of(const Case& value, std::int64_t rank, std::int64_t step);

bool has_fault(const Case& value, const char* kind);

}  // namespace lockstep::harness::fuzz
