// SPDX-License-Identifier: Apache-2.0
// lockstep fuzz: invents cases until one is not as predicted.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/cli/judging.h"
#include "harness/cli/validators.h"
#include "harness/fuzz/break/break.h"
#include "harness/fuzz/campaign/campaign.h"
#include "harness/fuzz/campaign/campaign_text.h"
#include "harness/fuzz/campaign/corpus.h"
#include "harness/report/progress.h"
#include "harness/report/result_file.h"
#include "harness/report/text_case.h"
#include "harness/report/text_style.h"
#include "harness/scenario.h"

namespace lockstep::harness::cli {

namespace {

using fuzz::CampaignOptions;
using fuzz::CampaignSummary;
using fuzz::Mode;

constexpr const char* kFuzzFooter =
    "Valid scripts must end equal, or within their derived bound; broken ones as rules predict. "
    "What\n"
    "does not is a finding: it is shrunk, printed, and written as a scenario file.\n"
    "Examples:\n"
    "  lockstep fuzz --time 600 --corpus corpus\n"
    "  lockstep fuzz --seed 7 --cases 10000 --keep-going --json-lines tried.jsonl --pairs\n"
    "  lockstep fuzz --cases 100000 --shard 3/8 --seed 7          on the third of eight machines\n"
    "  lockstep fuzz --against torch --valid --time 300\n"
    "  lockstep fuzz --backend gloo --cases 200\n"
    "Exit status: 0 nothing was found; 1 something was; 2 wrong usage; 3 a defect of Lockstep "
    "itself;\n"
    "128 + N ended by signal N.";

constexpr const char* kRegressions = "scenarios/regressions";
constexpr std::uint64_t kCasesByDefault = 1'000;
constexpr std::int64_t kCasesMax = 4'000'000'000;  // numbers of scripts have 32 bits
constexpr std::int64_t kPropertiesByDefault = 1;

struct FuzzOptions {
  JudgingOptions judging;
  CampaignOptions campaign;
  SuiteOptions suite;
  std::string corpus, toward, pairs_path;
  std::optional<std::uint64_t> seed;
  std::optional<std::int64_t> jobs;
  bool valid_only = false, broken_only = false;
  bool no_replay = false, keep_going = false, no_shrink = false;
  bool pairs = false, fail_on_empty_pair = false;

  /// What people read goes where no program has asked for lines.
  std::FILE* text() const { return campaign.json_lines == "-" ? stderr : stdout; }
};

/// From the system; small enough to be typed.
std::uint64_t seed_of_the_day() {
  std::uint64_t bits = 0;
  LOCKSTEP_USAGE(getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits),
                 "the system gives no random numbers; choose a --seed");
  return bits % 1'000'000'000;
}

/// What is drawn, with whatever subject and wherever it runs.
void check_and_choose(FuzzOptions& options) {
  CampaignOptions& campaign = options.campaign;
  check_judging_options(options.judging);
  LOCKSTEP_USAGE(options.judging.backend != "nccl", "lockstep fuzz does not take --backend nccl");
  const std::string& sync = campaign.space.sync;
  LOCKSTEP_USAGE(sync == "ddp" || sync == "torch", "--sync takes ddp or torch, not '{}'", sync);
  LOCKSTEP_USAGE(sync == "ddp" || options.judging.against.empty(),
                 "--against {} compares our DDP with {}; leave out --sync {}",
                 options.judging.against, options.judging.against, sync);
  LOCKSTEP_USAGE(!options.valid_only || !options.broken_only,
                 "--valid and --broken leave nothing; give one of them, or none for both");
  campaign.space.backend = options.judging.backend;
  campaign.space.for_peer = !options.judging.against.empty() || sync == "torch";
  const bool can_break = fuzz::can_break(campaign.space);
  campaign.only_mode = options.valid_only || options.broken_only || !can_break;
  if (options.broken_only) campaign.space.mode = Mode::kBroken;
  LOCKSTEP_USAGE(!options.broken_only || can_break,
                 "--broken: how scripts with a mistake end is predicted for our DDP alone, in the "
                 "simulator and over gloo; leave out --sync, --against and another --backend, or "
                 "--broken");
  LOCKSTEP_USAGE(options.toward.empty() || options.toward == "ulp" || options.toward == "wait",
                 "--toward takes ulp or wait, not '{}'", options.toward);
  LOCKSTEP_USAGE(options.toward != "wait" || options.judging.backend == "sim",
                 "--toward wait is about virtual time: --backend sim");
  LOCKSTEP_USAGE(options.toward != "ulp" || !options.broken_only,
                 "--toward ulp is of no use with --broken: distances are those of valid scripts");
}

/// False for a folder that is not there or, as a corpus is at first, without a scenario file.
/// Whatever else is wrong with it, load_scenarios tells.
bool has_scenarios(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().extension() == ".toml" && it->is_regular_file(ignored)) return true;
  }
  return error && fs::is_directory(folder, error);
}

/// Leftovers, then the corpus, then the regressions.
std::vector<fuzz::Replay> replays(const FuzzOptions& options) {
  std::vector<fuzz::Replay> all;
  for (const fuzz::Leftover& left : fuzz::leftovers(options.campaign.folder)) {
    try {
      std::vector<NamedCase> cases = parse_scenario_text(left.text, left.path);
      fmt::print(options.text(), "left behind by a campaign that was killed, replayed first: {}\n",
                 left.path);
      for (NamedCase& named : cases) all.push_back({std::move(named), true});
    } catch (const UsageError& error) {
      fmt::print(stderr,
                 "lockstep: left behind by a campaign that was killed, and no case: {}\n"
                 "lockstep: remove '{}' to hear no more of it\n",
                 error.what(), left.path);
    }
  }
  if (options.no_replay) return all;
  std::vector<std::string> folders;
  for (const std::string& folder : {options.corpus, std::string(kRegressions)}) {
    if (!folder.empty() && has_scenarios(folder)) folders.push_back(folder);
  }
  if (folders.empty()) return all;
  Selection selection;
  if (options.campaign.space.sync != "ddp") selection.sync = options.campaign.space.sync;
  for (NamedCase& named : select_cases(load_scenarios(folders).cases, selection)) {
    all.push_back({std::move(named), false});
  }
  return all;
}

/// What is to be said again, besides the seed and the number of cases.
std::string repeat_options(const FuzzOptions& options) {
  std::string out;
  const CampaignOptions& campaign = options.campaign;
  if (options.valid_only) out += " --valid";
  if (options.broken_only) out += " --broken";
  if (campaign.space.ranks_max != fuzz::Space().ranks_max) {
    out += fmt::format(" --ranks-max {}", campaign.space.ranks_max);
  }
  if (campaign.num_shards > 1) {
    out += fmt::format(" --shard {}/{}", campaign.shard, campaign.num_shards);
  }
  if (!options.toward.empty()) out += " --toward " + options.toward;
  if (options.keep_going) {
    out += " --keep-going";
  } else if (campaign.findings_max != 1) {
    out += fmt::format(" --findings {}", campaign.findings_max);
  }
  Selection selection;
  if (campaign.space.sync != "ddp") selection.sync = campaign.space.sync;
  JudgingOptions judging = options.judging;
  if (judging.properties == kPropertiesByDefault) judging.properties = 0;
  if (options.judging.properties == 0) out += " --properties 0";
  return out + replay_options(judging, selection);
}

void print_found(const fuzz::Found& found, const FuzzOptions& options) {
  CaseTextOptions text;
  text.colour = wants_colour(fileno(options.text()));
  JudgingOptions judging = options.judging;
  const bool of_property = found.kind.rfind("property/", 0) == 0;
  judging.properties = of_property ? -1 : 0;
  text.replay_options = replay_options(judging, {});
  // What was not written cannot be replayed: the script is all there is to tell.
  fmt::print(options.text(), "{}{}\n",
             found.path.empty() ? "" : describe_case(found.shrunk.result, text),
             fuzz::describe_found(found, options.campaign.shrinks));
  std::fflush(options.text());
}

/// 3 if something found is no matter of the subject: neither an ending nor a process that died.
int status_of(const CampaignSummary& summary, bool pair_is_missing) {
  if (summary.signal != 0) return 128 + summary.signal;
  if (summary.findings.count("internal_error") != 0) return kDefect;
  return summary.findings.empty() && !pair_is_missing ? kAllAsExpected : kNotAsExpected;
}

int fuzz_until_done(FuzzOptions& options) {
  check_and_choose(options);
  CampaignOptions& campaign = options.campaign;
  campaign.seed = options.seed ? *options.seed : seed_of_the_day();
  if (!campaign.num_cases && !campaign.seconds) campaign.num_cases = kCasesByDefault;
  campaign.folder = options.corpus.empty() ? fuzz::scratch_folder() : options.corpus;
  if (options.keep_going) campaign.findings_max = std::numeric_limits<std::int64_t>::max();
  campaign.shrinks = !options.no_shrink;
  if (!options.toward.empty()) {
    campaign.toward = options.toward == "ulp" ? fuzz::Toward::kUlp : fuzz::Toward::kWait;
  }
  options.suite.jobs =
      options.jobs.value_or(options.judging.backend == "sim" ? available_cores() : 1);
  options.suite.process_start = prepare_process;
  const auto judge = std::make_shared<CaseJudge>(options.judging);
  options.suite.process_end = [judge] { judge->end(); };

  fmt::print(options.text(), "lockstep fuzz --seed {}\n", campaign.seed);
  campaign.replays = replays(options);
  std::fflush(options.text());
  const bool wants_pairs =
      options.pairs || options.fail_on_empty_pair || !options.pairs_path.empty();
  std::optional<ResultFile> pairs_file;
  if (!options.pairs_path.empty()) pairs_file.emplace(options.pairs_path);
  fuzz::PairTable pairs(campaign.space, !campaign.only_mode);

  Progress progress(campaign.num_cases
                        ? static_cast<std::int64_t>(*campaign.num_cases / campaign.num_shards)
                        : Progress::kUnknown);
  fuzz::CampaignEvents events;
  events.progress = [&](std::int64_t num_done) { progress.update(num_done); };
  events.found = [&](const fuzz::Found& found) {
    progress.clear();
    fmt::print(options.text(), "\nfound {} in {}, seed {}\n", found.kind, found.name,
               campaign.seed);
    std::fflush(options.text());
  };
  events.shrunk = [&](const fuzz::Found& found) {
    progress.clear();
    print_found(found, options);
  };
  const CampaignSummary summary = run_campaign(
      campaign, options.suite, [judge](const NamedCase& named) { return judge->judge(named); },
      events, wants_pairs ? &pairs : nullptr);
  progress.clear();
  fmt::print(options.text(), "\n{}",
             fuzz::describe_campaign(summary, campaign, repeat_options(options)));
  std::int64_t num_empty = 0;
  if (wants_pairs) {
    const std::vector<fuzz::Pair> all = pairs.pairs();
    num_empty = count_of(all, fuzz::Cell::kEmpty);
    if (options.pairs || (options.fail_on_empty_pair && num_empty > 0)) {
      fmt::print(options.text(), "\n{}", describe_pairs(all));
    }
    if (pairs_file) {
      pairs_file->out() << pairs_as_csv(all);
      pairs_file->commit();
    }
  }
  return status_of(summary, options.fail_on_empty_pair && num_empty > 0);
}

void add_options(CLI::App& command, FuzzOptions& options) {
  CampaignOptions& campaign = options.campaign;
  command
      .add_option_function<std::int64_t>(
          "--cases",
          [&](std::int64_t count) { campaign.num_cases = static_cast<std::uint64_t>(count); },
          "So many scripts, numbers 0 to N - 1 of the seed (default 1000)")
      ->check(CLI::Range(std::int64_t{0}, kCasesMax));
  command
      .add_option("--time", campaign.seconds,
                  "No case begins after so many seconds; one that runs is finished")
      ->check(above_zero());
  command.add_option_function<std::string>(
      "--seed", [&](const std::string& text) { options.seed = parse_seed(text); },
      "What the scripts depend on (default: one of the system's choice, which is printed)");
  command.add_option("--corpus", options.corpus,
                     "Folder of scenario files that are judged first and to which findings are "
                     "added (default: findings go to a folder for temporary files)");
  command.add_flag("--no-replay", options.no_replay,
                   "Judge neither the corpus nor scenarios/regressions first");
  command
      .add_option("--jobs", options.jobs,
                  "Cases at a time (default: one per processor; 1 with a real transport)")
      ->check(CLI::Range(1, 1024));
  command.add_option("--backend", options.judging.backend, "sim (default), gloo or c10d_gloo");
  command.add_option("--sync", campaign.space.sync, "ddp (default) or torch");
  command.add_option("--against", options.judging.against,
                     "torch: also run every case with PyTorch's reducer and compare everything");
  command.add_flag(
      "--valid", options.valid_only,
      "Scripts without a mistake only; always so with --sync torch, --against and c10d_gloo");
  command.add_flag("--broken", options.broken_only, "Scripts with a planted mistake only");
  command.add_option("--ranks-max", campaign.space.ranks_max, "Ranks of a script (default 8)")
      ->check(CLI::Range(1, 64));
  command.add_option_function<std::string>(
      "--shard",
      [&](const std::string& text) {
        Selection selection;
        parse_shard(text, selection);
        campaign.shard = static_cast<std::uint64_t>(selection.shard);
        campaign.num_shards = static_cast<std::uint64_t>(selection.num_shards);
      },
      "I/N: every Nth script, from the Ith on");
  command
      .add_option("--properties", options.judging.properties,
                  "Relations to other runs that each valid script is held against, of those "
                  "that apply; -1: all (default 1)")
      ->check(CLI::Range(std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()));
  command.add_flag("--keep-going", options.keep_going,
                   "Do not stop at the first finding; of each kind the first is shrunk");
  command.add_option("--findings", campaign.findings_max, "Stop after so many kinds (default 1)")
      ->check(above_zero())
      ->excludes("--keep-going");
  command.add_flag("--keep-all", campaign.keep_all, "Shrink and keep every finding of a kind");
  command.add_flag("--no-shrink", options.no_shrink, "Keep findings as they were drawn");
  command
      .add_option(
          "--case-timeout", options.suite.case_timeout_s,
          "Seconds that a case may take before that is a finding: of processor time, or standing "
          "still, as it does over real transports (default 30)")
      ->check(above_zero());
  command.add_option("--hang-after", options.judging.hang_after_s,
                     "Real transports: seconds without progress that make a deadlock (default 10)");
  command.add_option("--toward", options.toward,
                     "Go on from scripts that came farthest: ulp (distance over its bound) or wait "
                     "(longest virtual wait)");
  command.add_option(
      "--json-lines", campaign.json_lines,
      "Write a line of JSON for each case to this file; - is stdout, with all else on "
      "stderr");
  command.add_flag("--pairs", options.pairs, "Print which pairs of options were tried together");
  command.add_option("--pairs-file", options.pairs_path, "Write all pairs to this file, as CSV");
  command.add_flag("--fail-on-empty-pair", options.fail_on_empty_pair,
                   "Exit status 1 if a pair that the rules allow was never tried");
}

}  // namespace

void add_fuzz_command(CLI::App& app, int& exit_status) {
  CLI::App* command =
      app.add_subcommand("fuzz", "Invent cases until one is not as predicted, and shrink it");
  command->footer(kFuzzFooter);
  const auto options = std::make_shared<FuzzOptions>();
  options->judging.properties = kPropertiesByDefault;
  options->suite.case_timeout_s = 30.0;
  add_options(*command, *options);
  command->callback([options, &exit_status] { exit_status = fuzz_until_done(*options); });
}

}  // namespace lockstep::harness::cli
