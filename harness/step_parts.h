// SPDX-License-Identifier: Apache-2.0
// What [[at]] makes of a single forward: its route and its samples.
#pragma once

#include <cstdint>

#include "harness/case.h"
#include "harness/model.h"

namespace lockstep::harness {

/// The routes of all entries that hold there, added up; names in alphabetical order, each once.
Route route_at(const Case& value, std::int64_t rank, std::int64_t step, std::int64_t micro,
               std::int64_t forward);

/// Samples of a micro-batch.
std::int64_t samples_in(const Case& value, std::int64_t rank, std::int64_t step,
                        std::int64_t micro);

}  // namespace lockstep::harness
