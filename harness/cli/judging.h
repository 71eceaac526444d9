// SPDX-License-Identifier: Apache-2.0
// What commands that judge cases share: backends, and judging in whatever process asks for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "harness/case.h"
#include "harness/outcome.h"
#include "harness/suite.h"

namespace lockstep::harness::cli {

struct JudgingOptions {
  std::string backend = "sim";
  std::optional<double> hang_after_s;  ///< real transports only
  std::string against;                 ///< "torch": compare with PyTorch's reducer; empty: no
  /// How many relations to other runs a script without a mistake is held against (see
  /// fuzz/properties/properties.h); < 0: all.
  std::int64_t properties = 0;
};

/// Errors: UsageError for a backend that is unknown or not built, and for options that do not
/// concern it.
void check_judging_options(const JudgingOptions& options);

/// The value of --seed. Errors: UsageError unless it is an integer from 0 to 2^63 - 1, as in a
/// file.
std::uint64_t parse_seed(const std::string& text);

/// "2/5" into its parts. Errors: UsageError for anything else.
void parse_shard(const std::string& text, Selection& selection);

/// What must be said again to replay one case of a run; see SuiteInfo::replay_options.
std::string replay_options(const JudgingOptions& judging, const Selection& selection);

/// Prepares LibTorch for runs that can be repeated bit for bit: one thread, deterministic kernels.
void prepare_process();

/// Judges cases. What runs them is made at the first case, in the process that judges it; GPUs are
/// counted here, because CUDA does not survive a fork.
class CaseJudge {
 public:
  explicit CaseJudge(const JudgingOptions& options);
  ~CaseJudge();
  CaseJudge(const CaseJudge&) = delete;
  CaseJudge& operator=(const CaseJudge&) = delete;

  /// Errors: InvariantError.
  CaseResult judge(const NamedCase& named);

  /// Ends what runs the cases, worker processes among them.
  void end();

 private:
  struct Executors;
  void look_at_properties(const NamedCase& named, CaseResult& result);

  const JudgingOptions options_;
  const std::int64_t ranks_max_;
  std::unique_ptr<Executors> executors_;
};

}  // namespace lockstep::harness::cli
