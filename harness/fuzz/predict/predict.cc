// SPDX-License-Identifier: Apache-2.0
// Which kind of prediction a case needs.
#include "harness/fuzz/predict/predict.h"

#include "harness/fuzz/valid/valid.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {

std::optional<ExpectSpec> predict(const Case& value) {
  if (has_mistake(value)) return predict_broken(value);
  if (!why_not_valid(value).empty()) return std::nullopt;
  return predict_valid(value);
}

bool expect_as_predicted(Case& value) {
  value.expect = {};
  value.expect.oracles = {"ranks"};  // asks for nothing that might not be defined
  value.expect_sim.reset();
  value.expect_gloo.reset();
  value.expect_torch.clear();
  if (!check_case(value).empty()) return false;
  const std::optional<ExpectSpec> expect = predict(value);
  if (!expect) return false;
  value.expect = *expect;
  return check_case(value).empty();
}

}  // namespace lockstep::harness::fuzz
