// SPDX-License-Identifier: Apache-2.0
// Hand-made results, one per outcome, for the tests of the reports.
#include "tests/harness/report_samples.h"

#include <limits>

namespace lockstep::test {

using namespace harness;

namespace {

CaseResult named(const std::string& file, const std::string& name, const std::string& title) {
  CaseResult result;
  result.file = file;
  result.name = name;
  result.title = title;
  result.backend = "sim";
  result.replay_toml = "schema = 1\ntitle = \"" + title + "\"\n";
  result.as_expected = true;
  result.outcome.oracles = {"ranks", "replay", "serial"};
  result.bucket_all_reduces = 6;
  result.trace_hash = 0xfedcba9876543210U;
  result.seconds = 0.25;
  return result;
}

StepSummary step(std::int64_t number, std::vector<std::uint64_t> checksums) {
  StepSummary summary;
  summary.step = number;
  summary.reference_loss = 1.5 - 0.25 * static_cast<double>(number);
  summary.losses = {1.0 - 0.25 * static_cast<double>(number),
                    2.0 - 0.25 * static_cast<double>(number)};
  summary.reference_checksum = 0x1111111111111100U + static_cast<std::uint64_t>(number);
  summary.checksums = std::move(checksums);
  return summary;
}

}  // namespace

CaseResult sample_within_bound() {
  CaseResult result = named("scenarios/a.toml", "ranks=2,seed=1", "Two ranks equal one process");
  result.outcome.kind = OutcomeKind::kWithinBound;
  result.outcome.worst = Distance{1.5e-7, 4e-7, 1, "layer0.weight"};
  result.steps = {step(0, {0x1111111111111100U, 0x1111111111111100U}),
                  step(1, {0x1111111111111101U, 0x1111111111111101U})};
  result.rebuilds = 1;
  return result;
}

CaseResult sample_diverged() {
  CaseResult result = named("scenarios/a.toml", "ranks=2,seed=2", "Two ranks equal one process");
  result.as_expected = false;
  result.complaints = {"outcome diverged, expected equal"};
  result.steps = {step(0, {0x1111111111111100U, 0x1111111111111100U}),
                  step(1, {0x1111111111111101U, 0x2222222222222222U})};
  Outcome& outcome = result.outcome;
  outcome.kind = OutcomeKind::kDiverged;
  outcome.reason = "Rank 1 got the sum of the gradients where their mean was due.";
  Divergence divergence;
  divergence.oracle = "replay";
  divergence.step = 1;
  divergence.phase = "gradient";
  divergence.ranks = {1};
  divergence.tensor = "layer0.weight";
  divergence.element = 5;
  divergence.expected = "0.125";
  divergence.actual = "0.25";
  divergence.expected_bits = "0x3e000000";
  divergence.actual_bits = "0x3e800000";
  divergence.ulp = 8388608;
  divergence.num_elements_differ = 30;
  divergence.causes = {{"times_world_size", "The gradient is W times what it should be.", true},
                       {"stale_gradient", "The previous step's gradient was added.", false}};
  outcome.divergence = divergence;
  return result;
}

CaseResult sample_deadlock() {
  CaseResult result = named("scenarios/deadlock/b.toml", "", "A rank skips a branch");
  Outcome& outcome = result.outcome;
  outcome.kind = OutcomeKind::kDeadlock;
  outcome.reason = "Rank 0 waits for a bucket that rank 1 never fills.";
  RankState waits;
  waits.rank = 0;
  waits.ending = Ending::kWaiting;
  waits.at_step = 1;
  waits.at_phase = "backward";
  waits.waiting = WaitingIn{"all_reduce", "bucket", 7, 1, 0, 42, "Float", {1}};
  RankState ended;
  ended.rank = 1;
  ended.ending = Ending::kFinished;
  ended.at_step = 2;
  const std::string why = "block vision was not run";
  ended.never_ready = {{"vision.weight", 0, 1, 0, why}, {"vision.bias", 0, 1, 0, why}};
  outcome.ranks = {waits, ended};
  ended.alone = {"left out vision in step 1"};
  outcome.ranks.back() = ended;
  outcome.stuck = {{*waits.waiting, {0}, {{1, "finished after 3 steps"}}}};
  outcome.diagnoses = {{"unfinished_hang", "vision.weight never became ready on rank 1.", true}};
  outcome.cures_tried = {{"find_unused_parameters", true, ""}};
  outcome.cure = Cure{"find_unused_parameters",
                      "Set find_unused_parameters = true; the same schedule then ends as equal."};
  outcome.wait_for_text = "rank 0 -> rank 1";
  outcome.wait_for_dot = "digraph wait_for { r0 -> r1; }\n";
  return result;
}

CaseResult sample_error() {
  CaseResult result = named("scenarios/deadlock/c.toml", "", "Ranks disagree about a collective");
  result.as_expected = false;
  result.complaints = {"outcome error, expected deadlock", "no rank waits, expected rank 0"};
  Outcome& outcome = result.outcome;
  outcome.kind = OutcomeKind::kError;
  outcome.mismatch = MismatchInfo{3, 0, 2, "all_reduce (bucket 0, step 0), 42 x Float",
                                  "broadcast (user, step 0), 1 x Float"};
  RankState failed;
  failed.rank = 2;
  failed.ending = Ending::kFailed;
  failed.at_step = 0;
  failed.at_phase = "forward";
  failed.error_kind = "desync";
  failed.error_message = "two lines:\nthe second";
  RankState left;
  left.rank = 3;
  left.ending = Ending::kLeft;
  left.at_step = 0;
  outcome.ranks = {failed, left};
  outcome.wrong_pairing = WrongPairing{3,
                                       {{{"all_reduce", "bucket", 0, 42, "Float", 0}, {0, 1}},
                                        {{"broadcast", "script", 0, 1, "Float", -1}, {2}}},
                                       {3},
                                       false};
  outcome.diagnoses = {{"wrong_pairing", "The collectives of rank 2 differ from seq 3 on.", true}};
  outcome.cures_tried = {{"broadcast_buffers_off", false, "rank 2 failed with desync"},
                         {"all_ranks", false, "deadlock"}};
  return result;
}

CaseResult sample_crash() {
  CaseResult result = named("scenarios/faults/d.toml", "", "A rank dies");
  result.backend = "gloo";
  result.as_expected = false;
  result.complaints = {"outcome crash, expected equal"};
  result.equals_simulator = false;
  result.trace_hash = 0;
  result.outcome.kind = OutcomeKind::kCrash;
  RankState crashed;
  crashed.rank = 1;
  crashed.ending = Ending::kCrashed;
  crashed.at_step = 4;
  crashed.at_phase = "sync";
  crashed.signal = 11;
  result.outcome.ranks = {crashed};
  return result;
}

CaseResult sample_skipped() {
  CaseResult result = named("scenarios/sim_only.toml", "", "Needs the simulator");
  result.backend = "gloo";
  result.as_expected = false;
  result.skipped = true;
  return result;
}

CaseResult sample_defect() {
  CaseResult result = named("scenarios/z.toml", "seed=9", "Shows a defect");
  result.as_expected = false;
  result.internal_error = "the process that judged this case ended with SIGABRT (signal 6)";
  return result;
}

CaseResult sample_nasty() {
  CaseResult result =
      named("scen arios/<&\"'>.toml", "k=\x01\x1b[31m", "]]> <!-- &amp; \xff\xc0\x80 \xef\xbf\xbf");
  result.as_expected = false;
  result.complaints = {std::string("a zero byte \0 and an escape \x1b]0;title\x07", 38),
                       "un\xc3\xaf"
                       "code stays: \xe2\x86\x92 \xf0\x9f\x98\x80"};
  result.outcome.kind = OutcomeKind::kDiverged;
  StepSummary odd;
  odd.reference_loss = std::numeric_limits<double>::quiet_NaN();
  odd.losses = {std::numeric_limits<double>::infinity()};
  result.steps = {odd};
  return result;
}

std::vector<CaseResult> all_samples() {
  return {sample_within_bound(), sample_diverged(), sample_deadlock(), sample_error(),
          sample_crash(),        sample_skipped(),  sample_defect(),   sample_nasty()};
}

void feed_samples(Report& report) {
  SuiteInfo info;
  SuiteSummary summary;
  const std::vector<CaseResult> samples = all_samples();
  info.num_cases = summary.num_cases = static_cast<std::int64_t>(samples.size());
  info.replay_options = " --seed 3";
  report.begin(info);
  for (const CaseResult& sample : samples) {
    tally(sample, summary);
    report.case_done(sample);
  }
  // 7 cases that ran in 3.5 s are 2 per second, on 2 cores 1 each.
  summary.seconds = 3.5;
  summary.jobs = 2;
  summary.cores = 2;
  report.end(summary);
}

}  // namespace lockstep::test
