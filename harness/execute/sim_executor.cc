// SPDX-License-Identifier: Apache-2.0
// Runs a program's ranks in the deterministic simulator.
#include <fmt/format.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "core/check.h"
#include "harness/execute/waiting_in.h"
#include "harness/executor.h"
#include "harness/graph_model.h"
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

class SimExecutor final : public Executor {
 public:
  explicit SimExecutor(const SimExecutorOptions& options) : options_(options) {}

  Run execute(const Program& program) override {
    const auto world_size = program.value.world.ranks;
    std::vector<std::unique_ptr<RankBody>> bodies(static_cast<std::size_t>(world_size));
    std::vector<RankRun> stuck(static_cast<std::size_t>(world_size));
    const auto result = sim::run_world(
        world_options(program.value),
        [&](sim::RankContext& context) {
          auto& body = bodies[static_cast<std::size_t>(context.rank())];
          body = std::make_unique<RankBody>(
              program, context.rank(),
              RankServices{&context.communicator(), &context.observer(),
                           [&context](std::int64_t ns) { context.sleep_ns(ns); }});
          body->run();
        },
        [&] {
          for (std::size_t rank = 0; rank < bodies.size(); ++rank) {
            if (bodies[rank] != nullptr) {
              stuck[rank] = bodies[rank]->position();
            }
          }
        });
    return collect(result, bodies, stuck);
  }

 private:
  sim::WorldOptions world_options(const Case& value) const {
    sim::WorldOptions options;
    options.world_size = value.world.ranks;
    options.schedule.policy = value.world.schedule == "random" ? sim::SchedulePolicy::kRandom
                                                               : sim::SchedulePolicy::kRoundRobin;
    options.schedule.seed = value.seed;
    options.check_tags = value.world.check_tags;
    options.keep_trace = options_.keep_trace;
    return options;
  }

  Run collect(const sim::WorldResult& result, std::vector<std::unique_ptr<RankBody>>& bodies,
              const std::vector<RankRun>& stuck) const {
    Run run;
    for (std::size_t rank = 0; rank < bodies.size(); ++rank) {
      RankRun record = bodies[rank]->take_record();
      if (result.ranks[rank].end == sim::RankEnd::kWaiting) {
        record.ending = Ending::kWaiting;
        record.error_kind.clear();
        record.error_message.clear();
        record.waiting = waiting_in(*result.ranks[rank].waiting_in);
        record.waiting->waiting_for = result.ranks[rank].waiting_for;
        record.at_step = stuck[rank].at_step;
        record.at_phase = stuck[rank].at_phase;
        record.never_ready = stuck[rank].never_ready;
      }
      run.ranks.push_back(std::move(record));
    }
    if (result.mismatch) {
      const sim::Mismatch& mismatch = *result.mismatch;
      run.mismatch = MismatchInfo{mismatch.first.seq, mismatch.first_rank, mismatch.second_rank,
                                  sim::to_string(mismatch.first), sim::to_string(mismatch.second)};
    }
    run.trace_hash = result.trace.hash;
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
