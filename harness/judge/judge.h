// SPDX-License-Identifier: Apache-2.0
// From a case to a verdict: runs the subject and the references and compares them step by step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "harness/case.h"
#include "harness/executor.h"
#include "harness/outcome.h"

namespace lockstep::harness {

constexpr std::int64_t kAnyNumberOfRanks = 1 << 30;

struct JudgeOptions {
  std::string backend = "sim";   ///< "sim" | "gloo" | ...; selects the expectation
  Executor* executor = nullptr;  ///< runs the subject; outlives the call
  /// Runs the same case in the simulator, to compare final parameters and to try cures; outlives
  /// the call. May be the same as `executor`.
  Executor* simulator = nullptr;
  bool try_cures = true;
  /// Also runs cases of our DDP with PyTorch's reducer on `executor`, and compares everything.
  bool against_torch = false;
  std::int64_t ranks_max = kAnyNumberOfRanks;  ///< cases with more ranks are skipped
};

/// Runs and judges one case. A case that cannot be judged on the backend comes back as
/// skipped.
/// Errors: none; a defect of Lockstep itself is told in `internal_error`.
CaseResult judge_case(const NamedCase& named, const JudgeOptions& options);

/// What the subject's run amounts to, before anything is expected of it.
/// Runs the references as needed; `simulator` tries cures if it is given.
Outcome judge_run(const Case& value, const ExpectSpec& expect, const Run& subject,
                  Executor* simulator, std::vector<StepSummary>* steps);

/// What differs from the expectation, one sentence each; empty if the case is as expected.
std::vector<std::string> complaints_about(const ExpectSpec& expect, const CaseResult& result);

/// The same for what the ranks issued.
std::vector<std::string> complaints_about_issued(const ExpectSpec& expect, const Run& subject);
/// The same for the numbers of single tensors.
std::vector<std::string> complaints_about_values(const ExpectSpec& expect, const Run& subject);

/// The same for entries of [[at]] (routing apart) and [[fault]] that no rank ever carried out.
std::vector<std::string> complaints_about_planted(const Case& value, const Run& subject);

/// The same for `ends`: how each rank ended, whatever the outcome.
std::vector<std::string> complaints_about_ends(const ExpectSpec& expect, const Run& subject);

}  // namespace lockstep::harness
