// SPDX-License-Identifier: Apache-2.0
// What must come out of a script without a mistake.
#include "harness/fuzz/predict.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {

ExpectSpec predict_valid(const Case& value) {
  ExpectSpec expect;
  if (!why_no_serial(value).empty()) {
    expect.oracles = {"ranks", "replay"};
  } else if (!value.data.exact && !is_one_batch(value)) {
    expect.outcome = "within_bound";
  }
  return expect;
}

}  // namespace lockstep::harness::fuzz
