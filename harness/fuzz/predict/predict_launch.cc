// SPDX-License-Identifier: Apache-2.0
// What becomes of processes that do not meet.
#include "harness/fuzz/meeting.h"
#include "harness/fuzz/predict/predict_mistake.h"

namespace lockstep::harness::fuzz {

std::optional<ExpectSpec> predict_launch(const Case& value) {
  Case met = value;
  met.launch = LaunchSpec();
  const std::optional<Meeting> meeting = meeting_of(value);
  if (!meeting || meeting->error.empty() || !settle(met) || !does_nothing_else(met)) {
    return std::nullopt;
  }
  ExpectSpec expect;
  expect.outcome = "error";
  expect.oracles = {"ranks", "replay"};
  expect.error = meeting->error;
  if (meeting->failing == Meeting::Failing::kLate) {
    return expect;
  }
  ExpectEnd failed;
  failed.ending = "failed";
  failed.error = meeting->error;
  failed.ranks = meeting->processes;
  expect.ends.push_back(failed);
  if (meeting->failing == Meeting::Failing::kSome) {
    ExpectEnd finished;
    finished.ending = "finished";
    for (std::size_t i = 0; i < value.launch.processes.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i);
      if (!covers(failed.ranks, place)) finished.ranks.push_back(place);
    }
    expect.ends.push_back(finished);
  }
  return expect;
}

}  // namespace lockstep::harness::fuzz
