// SPDX-License-Identifier: Apache-2.0
// What commands that judge cases share: backends, and judging in whatever process asks for it.
#include "harness/cli/judging.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>

#include "core/check.h"
#include "core/nccl_api.h"
#include "harness/execute/process_executor.h"
#include "harness/execute/transport.h"
#include "harness/executor.h"
#include "harness/judge/judge.h"
#include "harness/scenario.h"
#include "harness/scenario/nearest_name.h"
#ifdef LOCKSTEP_WITH_FUZZ
#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/properties/properties.h"
#include "harness/fuzz/shrink/finding.h"
#endif

namespace lockstep::harness::cli {

namespace {

#ifdef LOCKSTEP_WITH_TORCH_REDUCER
constexpr bool kWithTorchReducer = true;
#else
constexpr bool kWithTorchReducer = false;
#endif

/// For backends other than the simulator.
std::unique_ptr<Executor> make_real_executor(const JudgingOptions& options) {
  ProcessExecutorOptions executor_options;
  executor_options.transport = options.backend;
  if (options.hang_after_s) executor_options.hang_after_seconds = *options.hang_after_s;
  return make_process_executor(executor_options);
}

}  // namespace

struct CaseJudge::Executors {
  std::unique_ptr<Executor> subject;
  std::unique_ptr<Executor> simulator;  ///< cures, and what real runs are compared with: each once
};

void check_judging_options(const JudgingOptions& options) {
  const std::vector<std::string> backends = {"sim", "gloo", "c10d_gloo", "nccl"};
  const bool known = std::find(backends.begin(), backends.end(), options.backend) != backends.end();
  LOCKSTEP_USAGE(known, "unknown backend '{}'; expected sim, gloo, c10d_gloo or nccl{}",
                 options.backend, did_you_mean(options.backend, backends));
  LOCKSTEP_USAGE(options.backend == "sim" || has_transport(options.backend),
                 "backend '{}' was not built; --backend sim needs nothing but LibTorch",
                 options.backend);
  const std::string reason = options.backend == "nccl" ? why_no_nccl() : "";
  LOCKSTEP_USAGE(reason.empty(), "--backend nccl: {}", reason);
  LOCKSTEP_USAGE(options.against.empty() || options.against == "torch",
                 "--against takes torch, not '{}'", options.against);
  LOCKSTEP_USAGE(options.against.empty() || kWithTorchReducer,
                 "--against torch was not built: LibTorch's c10d/reducer.hpp was not found when "
                 "this program was configured");
  if (!options.hang_after_s) return;
  LOCKSTEP_USAGE(options.backend != "sim",
                 "--hang-after is of no use with --backend sim: the simulator knows at once when "
                 "nobody can go on");
  LOCKSTEP_USAGE(*options.hang_after_s > 0 && *options.hang_after_s <= 1e6,
                 "--hang-after must be more than 0 s and at most 1000000 s, not {}",
                 *options.hang_after_s);
}

std::uint64_t parse_seed(const std::string& text) {
  std::int64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, seed);
  LOCKSTEP_USAGE(error == std::errc() && rest == end && seed >= 0,
                 "--seed takes an integer from 0 to {}, not '{}'",
                 std::numeric_limits<std::int64_t>::max(), text);
  return static_cast<std::uint64_t>(seed);
}

void parse_shard(const std::string& text, Selection& selection) {
  std::int64_t shard = 0, num_shards = 0;
  int num_read = 0;
  const int num_fields = std::sscanf(text.c_str(), "%9ld/%9ld%n", &shard, &num_shards, &num_read);
  const bool whole = num_fields == 2 && static_cast<std::size_t>(num_read) == text.size();
  LOCKSTEP_USAGE(whole && shard >= 1 && shard <= num_shards,
                 "--shard takes I/N, such as 1/4, not '{}'", text);
  selection.shard = shard;
  selection.num_shards = num_shards;
}

std::string replay_options(const JudgingOptions& judging, const Selection& selection) {
  std::string out;
  if (judging.backend != "sim") out += " --backend " + judging.backend;
  if (!judging.against.empty()) out += " --against " + judging.against;
  if (judging.properties != 0) out += fmt::format(" --properties {}", judging.properties);
  if (!selection.sync.empty()) out += " --sync " + selection.sync;
  if (selection.seed) out += fmt::format(" --seed {}", *selection.seed);
  // Last, where replay_command puts a run's own schedule in its place.
  if (!selection.schedule.empty()) out += fmt::format(" --schedule '{}'", selection.schedule);
  return out;
}

void prepare_process() {
  at::set_num_threads(1);
  at::globalContext().setDeterministicAlgorithms(true, false);
}

CaseJudge::CaseJudge(const JudgingOptions& options)
    : options_(options),
      ranks_max_(options.backend == "nccl" ? nccl_ranks_max(nccl_api()) : kAnyNumberOfRanks) {}
CaseJudge::~CaseJudge() = default;

CaseResult CaseJudge::judge(const NamedCase& named) {
  if (!executors_) {
    executors_ = std::make_unique<Executors>();
    executors_->subject =
        options_.backend == "sim" ? make_sim_executor() : make_real_executor(options_);
    SimExecutorOptions once;
    once.repeat_one_in = 0;
    executors_->simulator = make_sim_executor(once);
  }
  JudgeOptions judge_options;
  judge_options.backend = options_.backend;
  judge_options.ranks_max = ranks_max_;
  judge_options.against_torch = options_.against == "torch";
  judge_options.simulator = executors_->simulator.get();
  judge_options.executor = executors_->subject.get();
  CaseResult result = judge_case(named, judge_options);
  look_at_properties(named, result);
  return result;
}

void CaseJudge::look_at_properties(const NamedCase& named, CaseResult& result) {
  const Case& value = named.value;
#ifdef LOCKSTEP_WITH_FUZZ
  if (options_.properties == 0 || !result.as_expected || fuzz::has_mistake(value)) return;
  Executor& executor = options_.backend == "sim" ? *executors_->simulator : *executors_->subject;
  const std::string shrunk_for = fuzz::property_of(named.name);
  const std::string property = shrunk_for.empty() ? fuzz::property_of_file(named.file) : shrunk_for;
  if (!property.empty())
    result.broken_properties = fuzz::broken_property(value, executor, property);
  if (shrunk_for.empty() && result.broken_properties.empty()) {
    result.broken_properties = fuzz::broken_properties(value, executor, options_.properties);
  }
  if (result.broken_properties.empty()) return;
  result.as_expected = false;
  result.replay_toml = print_case(value);
#else
  (void)value, (void)result;
#endif
}

void CaseJudge::end() { executors_.reset(); }

}  // namespace lockstep::harness::cli
