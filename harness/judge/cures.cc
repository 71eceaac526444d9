// SPDX-License-Identifier: Apache-2.0
// Tries candidate changes until one makes the case pass.
#include "harness/judge/cures.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/judge/divergence.h"
#include "harness/program.h"
#include "harness/reference/reference.h"

namespace lockstep::harness {
namespace {

bool passes(const Case& value, Executor& simulator) {
  const Program subject = compile_subject(value);
  const Run run = simulator.execute(subject);
  const bool ended = std::all_of(run.ranks.begin(), run.ranks.end(), [](const RankRun& rank) {
    return rank.ending == Ending::kFinished || rank.ending == Ending::kLeft;
  });
  if (!ended || run.mismatch) {
    return false;
  }
  const Run replay = run_replay(compile_replay(value), run);
  References references;
  references.ranks = true;
  references.replay = &replay;
  references.num_steps = steps_by_rank(value);
  return !compare_runs(run, references).divergence;
}

bool disturbs_some_ranks(const AtSpec& at) {
  return !at.ranks.empty() &&
         (at.leave || at.skip_step || at.detach || at.evaluate > 0 || !at.collective.empty());
}

bool has_uneven_inputs(const Case& value) {
  const std::vector<std::int64_t> steps = steps_by_rank(value);
  return std::any_of(steps.begin(), steps.end(),
                     [&](std::int64_t count) { return count != steps.front(); });
}

}  // namespace

std::optional<Cure> find_cure(const Case& value, Executor& simulator) {
  if (reduces_in_backward(value.ddp) && !value.ddp.find_unused_parameters &&
      !value.ddp.static_graph) {
    Case cured = value;
    cured.ddp.find_unused_parameters = true;
    if (passes(cured, simulator)) {
      return Cure{"find_unused_parameters",
                  "set ddp.find_unused_parameters = true: run again on the same schedule, every "
                  "rank finished with the right bits"};
    }
  }
  if (value.ddp.broadcast_buffers) {
    Case cured = value;
    cured.ddp.broadcast_buffers = false;
    if (passes(cured, simulator)) {
      return Cure{"broadcast_buffers_off",
                  "set ddp.broadcast_buffers = false: run again on the same schedule, every rank "
                  "finished with the right bits"};
    }
  }
  if (reduces_in_backward(value.ddp) && value.ddp.join == "off") {
    Case cured = value;
    cured.ddp.join = "divide_by_initial";
    if (has_uneven_inputs(cured) && passes(cured, simulator)) {
      return Cure{"join",
                  "set ddp.join, so that ranks without inputs take part in the others' "
                  "iterations: run again on the same schedule, every rank finished with the right "
                  "bits"};
    }
  }
  if (std::any_of(value.at.begin(), value.at.end(), disturbs_some_ranks)) {
    Case cured = value;
    for (AtSpec& at : cured.at) {
      if (disturbs_some_ranks(at)) {
        at.ranks.clear();
      }
    }
    if (passes(cured, simulator)) {
      return Cure{"all_ranks",
                  "let all ranks do what some do alone (agree on it first): run again on the same "
                  "schedule, every rank finished with the right bits"};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::harness
