// SPDX-License-Identifier: Apache-2.0
// Models for tests of what is found in them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "harness/model.h"

namespace lockstep::harness {

/// A trunk, an inner stage of two branches that are added, and two heads.
inline ModelSpec branching() {
  ModelSpec model;
  model.kind = "graph";
  model.blocks = {{"trunk", "linear 6 4"}, {"left", "linear 4 4"},   {"right", "same left"},
                  {"act", "relu"},         {"vision", "linear 4 3"}, {"text", "linear 4 2 no_bias"},
                  {"spare", "linear 9 9"}};
  model.forward = {{"trunk"}, {"left", "right"}, {"act"}, {"vision", "text"}};
  return model;
}

/// Blocks in this order.
inline ModelSpec graph(std::vector<std::pair<std::string, std::string>> blocks) {
  ModelSpec model;
  model.kind = "graph";
  model.blocks = std::move(blocks);
  return model;
}

/// The only finding there is; fails if there are more or none.
inline ModelFinding only(const std::vector<ModelFinding>& findings) {
  EXPECT_EQ(findings.size(), 1U);
  return findings.empty() ? ModelFinding{} : findings[0];
}

}  // namespace lockstep::harness
