// SPDX-License-Identifier: Apache-2.0
// lockstep simulate: how long will a step take?
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/report/progress.h"
#include "harness/report/result_file.h"
#include "harness/report/text_style.h"
#include "harness/scenario.h"
#include "harness/timing/blocks.h"
#include "harness/timing/name_filter.h"
#include "harness/timing/predict.h"
#include "harness/timing/prediction_text.h"
#include "harness/wall_clock.h"

namespace lockstep::harness::cli {

namespace {

using sim::timing::Prediction;

constexpr const char* kSimulateFooter =
    "FILE is a timing file: kind = \"timing\"; scenarios/timing has examples and a README of\n"
    "its keys. Times are virtual: the same file gives the same bits, whatever the machine's load.\n"
    "Examples:\n"
    "  lockstep simulate scenarios/timing/bucket_size_has_an_optimum.toml\n"
    "  lockstep simulate FILE --best-bucket-cap --json prediction.json\n"
    "  lockstep simulate FILE --only 'ranks=256' -v\n"
    "  lockstep simulate FILE --measure\n"
    "Exit status: 0 every claim under [[expect]] holds; 1 some claim does not; 2 wrong usage or "
    "an\n"
    "invalid file.";

struct SimulateOptions {
  std::string path, only, json_path;
  bool unfolded = false, best_cap = false, measure = false, verbose = false, stats = false;
};

TimingStudy study_of(const SimulateOptions& options) {
  ScenarioSet set = load_scenarios({options.path});
  LOCKSTEP_USAGE(set.studies.size() == 1 && set.cases.empty(),
                 "{} holds {} timing files and {} cases of scenarios; expected one timing file "
                 "(kind = \"timing\"), and `lockstep run` for the rest",
                 options.path, set.studies.size(), set.cases.size());
  return std::move(set.studies.front());
}

/// Leaves the points whose name contains the expression, and no claim, for claims are about all.
void leave_only(const std::string& only, TimingStudy& study) {
  if (only.empty()) return;
  const NameFilter filter(only);
  std::vector<TimingPoint> kept;
  for (TimingPoint& point : study.points) {
    if (filter.finds(point.name)) kept.push_back(std::move(point));
  }
  LOCKSTEP_USAGE(!kept.empty(), "no point of {} matches --only '{}'; the first is called '{}'",
                 study.file, only, study.points.front().name);
  study.points = std::move(kept);
  study.claims.clear();
}

/// Measures the layers of every point and says what was measured. Points that want the same share
/// it, so that they differ in what varies only.
std::string measure_layers(TimingStudy& study) {
  std::string text;
  std::vector<std::pair<sim::timing::Setup, sim::timing::Setup>> known;  // before and after
  for (TimingPoint& point : study.points) {
    const auto same = std::find_if(known.begin(), known.end(), [&](const auto& pair) {
      return layers_text(pair.first) == layers_text(point.setup) &&
             pair.first.train.samples_per_micro_batch == point.setup.train.samples_per_micro_batch;
    });
    if (same != known.end()) {
      point.setup.layers = same->second.layers;
      continue;
    }
    const sim::timing::Setup before = point.setup;
    measure_blocks(point.setup);
    known.emplace_back(before, point.setup);
    text += fmt::format("# measured with {} samples\n{}\n",
                        point.setup.train.samples_per_micro_batch, layers_text(point.setup));
  }
  return text;
}

/// Errors: UsageError where so many messages would take hours.
void check_unfolded(const TimingStudy& study) {
  constexpr std::int64_t kMaxRanks = 512;
  for (const TimingPoint& point : study.points) {
    LOCKSTEP_USAGE(point.setup.world.ranks <= kMaxRanks,
                   "--unfolded simulates every message of every rank, for {} ranks at most, not "
                   "{}; without it the same times come out for any number",
                   kMaxRanks, point.setup.world.ranks);
  }
}

std::vector<Prediction> predictions_of(const TimingStudy& study, const SimulateOptions& options) {
  Progress progress(static_cast<std::int64_t>(study.points.size()));
  std::vector<Prediction> predictions;
  if (options.unfolded) {
    check_unfolded(study);
    for (const TimingPoint& point : study.points) {
      predictions.push_back(sim::timing::simulate_unfolded(point.setup));
    }
  } else {
    predictions = predict(study, [&](std::int64_t num_done) { progress.update(num_done); });
  }
  progress.clear();
  return predictions;
}

std::string best_caps_text(const TimingStudy& study) {
  std::string text = "best bucket cap:\n";
  for (const TimingPoint& point : study.points) {
    const BestCap best = best_bucket_cap(point.setup);
    text += fmt::format("  {}{}ddp.bucket_cap_bytes = {}: {:.6g} ms, {:.3f} times as quick as {}\n",
                        point.name, point.name.empty() ? "" : ": ", best.cap_bytes, best.step_ms,
                        best.step_ms > 0 ? best.given_ms / best.step_ms : 1.0,
                        point.setup.ddp.bucket_cap_bytes);
  }
  return text;
}

/// What the simulation itself took. A rank's part in a collective counts as an event, whether its
/// class stood for it or it was simulated for itself.
std::string stats_text(const TimingStudy& study, const std::vector<Prediction>& predictions,
                       double seconds) {
  double events = 0.0;
  double worked = 0.0;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    events += static_cast<double>(predictions[i].num_collectives) *
              static_cast<double>(study.points[i].setup.world.ranks);
    worked += static_cast<double>(predictions[i].num_events);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return fmt::format(
      "simulated in {:.3f} s: {:.4g} times that a rank takes part in a collective ({:.4g} per "
      "second), by {:.4g} events of the simulation ({:.4g} per second); peak memory {:.4g} MB\n",
      seconds, events, events / seconds, worked, worked / seconds,
      static_cast<double>(usage.ru_maxrss) / 1e3);
}

int simulate(const SimulateOptions& options) {
  TimingStudy study = study_of(options);
  leave_only(options.only, study);
  std::unique_ptr<ResultFile> json_file;
  if (!options.json_path.empty()) json_file = std::make_unique<ResultFile>(options.json_path);
  std::string text = study.title.empty() ? "" : study.title + '\n';
  if (options.measure) text += measure_layers(study);
  const double start_s = wall_seconds();
  const std::vector<Prediction> predictions = predictions_of(study, options);
  const double seconds = wall_seconds() - start_s;
  const std::vector<ClaimOutcome> claims = judge_claims(study, predictions);

  if (study.points.size() > 1) text += describe_points(study, predictions);
  if (study.points.size() == 1 || options.verbose) {
    for (std::size_t i = 0; i < study.points.size(); ++i) {
      if (!study.points[i].name.empty()) text += fmt::format("\n[{}]\n", study.points[i].name);
      text += describe_point(study.points[i].setup, predictions[i]);
    }
  }
  if (options.best_cap) text += best_caps_text(study);
  // People read what no program has asked for.
  const bool taken = options.json_path == "-";
  text += describe_claims(claims, wants_colour(taken ? STDERR_FILENO : STDOUT_FILENO));
  if (options.stats) text += stats_text(study, predictions, seconds);
  fmt::print(taken ? stderr : stdout, "{}", text);
  if (json_file) {
    json_file->out() << study_to_json(study, predictions, claims);
    json_file->commit();
  }
  const bool all_hold = std::all_of(claims.begin(), claims.end(),
                                    [](const ClaimOutcome& claim) { return claim.holds; });
  return all_hold ? kAllAsExpected : kNotAsExpected;
}

}  // namespace

void add_simulate_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand("simulate", "Predict step time and overlap at any scale");
  command->footer(kSimulateFooter);
  const auto options = std::make_shared<SimulateOptions>();
  command->add_option("FILE", options->path, "A timing file")->required();
  command->add_option("--json", options->json_path, "Write JSON to this file; - is stdout");
  command->add_option("--only", options->only,
                      "Only points in whose name this regular expression is found; no claims");
  command->add_flag("--best-bucket-cap", options->best_cap,
                    "Also search the bucket cap with the shortest step");
  command->add_flag("--measure", options->measure,
                    "Take the times of layers that are blocks from this machine, and print them");
  command->add_flag("--unfolded", options->unfolded,
                    "Simulate every message of every rank; the times are the same");
  command->add_flag("--stats", options->stats, "Also say what the simulation itself took");
  command->add_flag("-v,--verbose", options->verbose, "Every point in full");
  command->callback([options, &exit_status] { exit_status = simulate(*options); });
}

}  // namespace lockstep::harness::cli
