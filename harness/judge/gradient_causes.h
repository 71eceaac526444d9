// SPDX-License-Identifier: Apache-2.0
// What may explain a gradient that differs.
#pragma once

#include <cstddef>

#include "harness/judge/hypotheses.h"
#include "harness/program.h"

namespace lockstep::harness {

/// Tests what plausible mistakes would have given for trainable parameter `index`, by replaying the
/// step of `divergence`.
void test_gradient_causes(Hypotheses& hypotheses, const Divergence& divergence,
                          const Program& replay, const Run& subject, std::size_t index);

}  // namespace lockstep::harness
