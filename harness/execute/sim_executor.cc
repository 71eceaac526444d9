// SPDX-License-Identifier: Apache-2.0
// Runs a program's ranks in the deterministic simulator.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/time_units.h"
#include "harness/execute/schedules.h"
#include "harness/execute/waiting_in.h"
#include "harness/executor.h"
#include "harness/graph_model.h"
#include "harness/launch.h"
#include "harness/rank_body.h"
#include "sim/world.h"

namespace lockstep::harness {
namespace {

std::string trace_text(const sim::Trace& trace) {
  std::string text;
  for (const sim::TraceEntry& entry : trace.entries) {
    text += fmt::format("{:>12} ns  rank {}  {} {} {}\n", entry.time_ns, entry.rank,
                        to_string(entry.event.kind), entry.event.index, entry.detail);
  }
  return text;
}

// See worker.cc, which does the same to real processes.
constexpr std::int64_t kStopTimeouts = 3;
constexpr int kExitStatus = 3;

// Runs that differ from the first and from each other, kept for the judge.
constexpr std::size_t kDifferentMax = 16;

class SimExecutor final : public Executor {
 public:
  explicit SimExecutor(const SimExecutorOptions& options) : options_(options) {}

  Run execute(const Program& program) override {
    Schedules schedules(program.value, decisions_of(program));
    sim::WorldOptions options = world_options(program.value);
    std::optional<Run> first;
    ScheduleSearch search;
    while (schedules.next(options)) {
      std::optional<Run> run = run_once(program, options);
      if (!run) {
        continue;  // a repetition
      }
      repeat(program, *run);
      if (!first) {
        first = std::move(run);
      } else if (!same_run(*first, *run)) {
        ++search.num_different;
        const bool is_new = std::none_of(search.different.begin(), search.different.end(),
                                         [&](const auto& other) { return same_run(*other, *run); });
        if (is_new && search.different.size() == kDifferentMax) {
          search.kept_all = false;
        } else if (is_new) {
          search.different.push_back(std::make_shared<const Run>(*std::move(run)));
        }
      }
    }
    if (schedules.are_many()) {
      search.num_schedules = schedules.num_schedules();
      search.num_repetitions = schedules.num_repetitions();
      search.all = schedules.were_all();
      search.num_orders = search.all ? schedules.num_orders() : std::nullopt;
      first->search = std::move(search);
    }
    return *std::move(first);
  }

 private:
  sim::WorldOptions world_options(const Case& value) const {
    sim::WorldOptions options;
    options.world_size = value.world.ranks;
    options.check_tags = value.world.check_tags;
    options.timeout_ns = value.world.timeout_ms * kNsPerMs;
    options.keep_trace = options_.keep_trace;
    return options;
  }

  // Of the default schedule, completions counted; 1 where nobody wants to know.
  std::int64_t decisions_of(const Program& program) {
    if (program.value.schedule.policy != "pct") {
      return 1;
    }
    sim::WorldOptions options = world_options(program.value);
    options.schedule.policy = sim::SchedulePolicy::kReplay;
    std::int64_t num_choices = 0;
    run_once(program, options, &num_choices);
    return std::max<std::int64_t>(num_choices, 1);
  }

  // Some runs are done twice, on the path that was recorded.
  void repeat(const Program& program, const Run& run) {
    if (options_.repeat_one_in == 0 || run.trace_hash % options_.repeat_one_in != 0) {
      return;
    }
    if (options_.before_repeat) {
      options_.before_repeat();
    }
    sim::WorldOptions options = world_options(program.value);
    options.schedule.policy = sim::SchedulePolicy::kReplay;
    options.schedule.schedule = sim::parse_schedule(run.schedule);
    const std::optional<Run> again = run_once(program, options);
    LOCKSTEP_CHECK(again && again->trace_hash == run.trace_hash,
                   "schedule '{}' gave trace {:016x} at first and {:016x} when it was repeated: "
                   "the run depends on something besides its case",
                   run.schedule, run.trace_hash, again ? again->trace_hash : 0);
  }

  // Empty if the scheduler gave the run up.
  std::optional<Run> run_once(const Program& program, const sim::WorldOptions& options,
                              std::int64_t* num_choices = nullptr) {
    if (program.value.launch.is_asked_for()) {
      return launch_and_train(program, options, num_choices);
    }
    return train(program, options, num_choices);
  }

  // The schedule is that of the launch; the training that follows takes the default one.
  std::optional<Run> launch_and_train(const Program& program, const sim::WorldOptions& options,
                                      std::int64_t* num_choices) {
    sim::WorldResult launch;
    std::vector<RankRun> processes = simulate_launch(program.value, options, launch);
    if (launch.abandoned) {
      return std::nullopt;
    }
    if (num_choices != nullptr) {
      *num_choices = launch.num_choices;
    }
    std::string trace = options_.keep_trace ? trace_text(launch.trace) : "";
    for (const RankRun& process : processes) {
      trace += process.listens_on.empty() ? "" : process.listens_on + '\n';
    }
    Run run;
    run.ranks = processes;
    if (!is_failed_launch(run)) {
      run = *train(program, world_options(program.value), nullptr);
      const std::vector<RankRun> met = of_first_run(program.value, std::move(processes));
      for (std::size_t rank = 0; rank < met.size(); ++rank) {
        run.ranks[rank].listens_on = met[rank].listens_on;
      }
    }
    run.trace_hash ^= launch.trace.hash;
    run.schedule = sim::to_string(launch.schedule);
    if (options_.keep_trace) {
      run.trace_text = trace + run.trace_text;
    }
    return run;
  }

  std::optional<Run> train(const Program& program, const sim::WorldOptions& options,
                           std::int64_t* num_choices) {
    std::vector<std::unique_ptr<RankBody>> bodies(static_cast<std::size_t>(options.world_size));
    std::vector<RankRun> stuck(static_cast<std::size_t>(options.world_size));
    std::vector<Death> deaths(static_cast<std::size_t>(options.world_size));
    const auto result = sim::run_world(
        options,
        [&](sim::RankContext& context) {
          const auto rank = static_cast<std::size_t>(context.rank());
          bodies[rank] = std::make_unique<RankBody>(
              program, context.rank(),
              RankServices{&context.communicator(), &context.observer(),
                           [&context](std::int64_t ns) { context.sleep_ns(ns); },
                           [&context] { return context.now_ns(); },
                           [&, rank](const std::string& kind) {
                             fail_process(program.value, context, kind, deaths[rank]);
                           },
                           &options_.subject});
          bodies[rank]->run();
          deaths[rank].at_ns = context.now_ns();
        },
        [&] {
          for (std::size_t rank = 0; rank < bodies.size(); ++rank) {
            if (bodies[rank] != nullptr) {
              stuck[rank] = bodies[rank]->position();
            }
          }
        });
    if (result.abandoned) {
      return std::nullopt;
    }
    if (num_choices != nullptr) {
      *num_choices = result.num_choices;
    }
    return collect(result, bodies, stuck, deaths);
  }

  // How and when a rank's process ended.
  struct Death {
    std::string kind;  // "exit", "crash"; empty: it did not die
    std::int64_t at_ns = -1;
  };

  static void fail_process(const Case& value, sim::RankContext& context, const std::string& kind,
                           Death& death) {
    if (kind == "stop") {
      context.sleep_ns(kStopTimeouts * value.world.timeout_ms * kNsPerMs);
    } else {
      death.kind = kind;
      death.at_ns = context.now_ns();
      context.die();
    }
  }

  // As of a real process, of which nothing is left but its status.
  static RankRun record_of_dead(const RankRun& record, const Death& death) {
    RankRun dead;
    dead.rank = record.rank;
    dead.ending = Ending::kCrashed;
    dead.at_step = record.at_step;
    dead.signal = death.kind == "crash" ? SIGKILL : 0;
    dead.error_kind = death.kind == "crash" ? "signal" : "exit";
    dead.error_message =
        death.kind == "crash"
            ? fmt::format("the process of rank {} was ended by signal {} ({})", record.rank,
                          dead.signal, ::strsignal(dead.signal))
            : fmt::format("the process of rank {} exited with status {}", record.rank, kExitStatus);
    return dead;
  }

  Run collect(const sim::WorldResult& result, std::vector<std::unique_ptr<RankBody>>& bodies,
              const std::vector<RankRun>& stuck, const std::vector<Death>& deaths) const {
    Run run;
    for (std::size_t rank = 0; rank < bodies.size(); ++rank) {
      RankRun record = bodies[rank]->take_record();
      if (result.ranks[rank].end == sim::RankEnd::kDied) {
        record = record_of_dead(record, deaths[rank]);
      }
      record.ended_at_ns = deaths[rank].at_ns;
      if (result.ranks[rank].end == sim::RankEnd::kWaiting) {
        record.ending = Ending::kWaiting;
        record.error_kind.clear();
        record.error_message.clear();
        record.waiting = waiting_in(*result.ranks[rank].waiting_in);
        record.waiting->waiting_for = result.ranks[rank].waiting_for;
        record.at_step = stuck[rank].at_step;
        record.at_phase = stuck[rank].at_phase;
        record.never_ready = stuck[rank].never_ready;
        record.collectives = stuck[rank].collectives;
      }
      run.ranks.push_back(std::move(record));
    }
    if (result.mismatch) {
      const sim::Mismatch& mismatch = *result.mismatch;
      run.mismatch = MismatchInfo{mismatch.first.seq, mismatch.first_rank, mismatch.second_rank,
                                  sim::to_string(mismatch.first), sim::to_string(mismatch.second)};
    }
    run.trace_hash = result.trace.hash;
    run.schedule = sim::to_string(result.schedule);
    if (options_.keep_trace) {
      run.trace_text = trace_text(result.trace);
    }
    return run;
  }

  SimExecutorOptions options_;
};

}  // namespace

std::unique_ptr<Executor> make_sim_executor(const SimExecutorOptions& options) {
  return std::make_unique<SimExecutor>(options);
}

}  // namespace lockstep::harness
