// SPDX-License-Identifier: Apache-2.0
// What a report is told: the suite, each case in order, the end.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "harness/outcome.h"

namespace lockstep::harness {

/// A case's place in the count. A defect counts as failed, and makes the exit status 3.
enum class Verdict : std::uint8_t { kPassed, kFailed, kSkipped, kDefect };
const char* to_string(Verdict verdict);

/// kPassed only if the outcome is the expected one and, where the final parameters were compared
/// with the simulator's, they were equal.
Verdict verdict_of(const CaseResult& result);

inline constexpr std::size_t kNumOutcomeKinds = 7;

/// Known before anything runs.
struct SuiteInfo {
  std::int64_t num_cases = 0;
  std::string backend = "sim";
  /// Options that were given for the whole suite and must be given again to replay one case, ready
  /// for a shell, with a leading blank: " --backend gloo --seed 3". Empty if there are none.
  std::string replay_options;
};

/// The counts of a suite, or of the part of it that ran.
struct SuiteSummary {
  std::int64_t num_cases = 0;  ///< that were to run
  std::int64_t passed = 0;
  std::int64_t failed = 0;  ///< defects among them
  std::int64_t skipped = 0;
  std::int64_t defects = 0;
  /// Indexed by OutcomeKind; skipped cases and defects are left out.
  std::array<std::int64_t, kNumOutcomeKinds> by_kind{};
  std::int64_t compared_with_simulator = 0;
  std::int64_t equal_to_simulator = 0;
  std::int64_t compared_with_peer = 0;
  std::int64_t equal_to_peer = 0;
  std::int64_t intended_differences = 0;  ///< from the peer, with a reason
  std::int64_t num_schedules = 0;         ///< of the cases that tried several
  std::int64_t searched = 0;              ///< cases that tried several schedules
  std::int64_t exhausted = 0;             ///< of these: cases that tried all there are
  std::int64_t jobs = 1;
  std::int64_t cores = 1;  ///< that the jobs could use: at most `jobs`
  int signal = 0;          ///< that ended the suite early
  bool stopped_at_failure = false;
  double seconds = 0.0;

  std::int64_t num_done() const { return passed + failed + skipped; }
};

/// Adds one case to the counts.
void tally(const CaseResult& result, SuiteSummary& summary);

/// 0 every case as expected, 1 some case not, 3 a defect; 128 + signal if a signal ended the suite.
int exit_status(const SuiteSummary& summary);

/// Turns records into bytes.
/// Order: `begin`, then `case_done` in the order of the cases, then `end`, once each suite. After
/// any `case_done`, `end` makes the output complete and well formed.
class Report {
 public:
  virtual ~Report() = default;
  virtual void begin(const SuiteInfo& info) = 0;
  virtual void case_done(const CaseResult& result) = 0;
  virtual void end(const SuiteSummary& summary) = 0;
};

}  // namespace lockstep::harness
