// SPDX-License-Identifier: Apache-2.0
// The table of candidate changes, and the runs that prove them.
#include "harness/judge/cures.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "harness/judge/divergence.h"
#include "harness/judge/judge.h"
#include "harness/model.h"
#include "harness/program.h"
#include "harness/reference/reference.h"

namespace lockstep::harness {
namespace {

struct Candidate {
  const char* name;
  const char* advice;
  bool (*change)(Case& value);  ///< false: there is nothing to change
};

// Steps that an entry is about, in which not all ranks do the same.
bool is_alone(const Case& value, const AtSpec& at) {
  for (std::int64_t step = 0; step < value.train.steps; ++step) {
    if (covers(at.steps, step) && !all_ranks_do(value, at, step)) {
      return true;
    }
  }
  return false;
}

bool has_uneven_inputs(const Case& value) {
  const std::vector<std::int64_t> steps = steps_by_rank(value);
  return std::any_of(steps.begin(), steps.end(),
                     [&](std::int64_t count) { return count != steps.front(); });
}

// Lets `change` work on every entry that some ranks have alone and that `concerns`.
template <typename Concerns, typename Change>
bool change_alone(Case& value, const Concerns& concerns, const Change& change) {
  const Case before = value;
  bool is_changed = false;
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    if (concerns(before.at[i]) && is_alone(before, before.at[i])) {
      change(value.at[i]);
      is_changed = true;
    }
  }
  return is_changed;
}

// For what all ranks are to do in the place of what one did.
AtSpec on_all_ranks(const AtSpec& at) {
  AtSpec agreed;
  agreed.steps = at.steps;
  return agreed;
}

bool disturbs(const AtSpec& at) {
  return at.leave || at.skip_step || at.detach || at.evaluate > 0 || !at.collective.empty();
}

bool evaluates_wrapper(const AtSpec& at) {
  return at.evaluate > 0 && at.evaluate_through == "wrapper";
}

bool join_with(Case& value, const char* divisor) {
  if (!reduces_in_backward(value.ddp) || value.ddp.join != "off") {
    return false;
  }
  value.ddp.join = divisor;
  return has_uneven_inputs(value);
}

bool leave_together(Case& value) {
  const bool leaves = change_alone(
      value, [](const AtSpec& at) { return at.leave || !at.raise.empty(); },
      [](AtSpec& at) {
        const std::string when = at.when;
        at = on_all_ranks(at);
        at.when = when;
        at.leave = true;
      });
  const auto& given = value.train.steps_of_rank;
  if (given.empty() || value.ddp.join != "off") {
    return leaves;
  }
  value.train.steps = *std::min_element(given.begin(), given.end());
  value.train.steps_of_rank.clear();
  return value.train.steps > 0;
}

bool erase_alone(Case& value, bool (*concerns)(const AtSpec&)) {
  const Case before = value;
  const auto end = std::remove_if(value.at.begin(), value.at.end(), [&](const AtSpec& at) {
    return concerns(at) && is_alone(before, at);
  });
  const bool is_changed = end != value.at.end();
  value.at.erase(end, value.at.end());
  return is_changed;
}

constexpr Candidate kCandidates[] = {
    {"find_unused_parameters", "set ddp.find_unused_parameters = true",
     [](Case& value) {
       const bool applies = reduces_in_backward(value.ddp) && !value.ddp.find_unused_parameters &&
                            !value.ddp.static_graph;
       value.ddp.find_unused_parameters = true;
       return applies;
     }},
    {"static_graph", "set ddp.static_graph = true, for every step uses the same parameters",
     [](Case& value) {
       const bool applies = reduces_in_backward(value.ddp) && !value.ddp.static_graph;
       value.ddp.static_graph = true;
       return applies;
     }},
    {"join", "set ddp.join, so that ranks without inputs take part in the others' iterations",
     [](Case& value) { return join_with(value, "divide_by_initial"); }},
    {"join_divide_by_active",
     "set ddp.join = \"divide_by_active\", so that ranks without inputs take part in the others' "
     "iterations and do not count",
     [](Case& value) { return join_with(value, "divide_by_active"); }},
    {"evaluate_inner_module",
     "evaluate through the inner module, whose forward issues no collective",
     [](Case& value) {
       return change_alone(value, evaluates_wrapper,
                           [](AtSpec& at) { at.evaluate_through = "module"; });
     }},
    {"broadcast_buffers_off", "set ddp.broadcast_buffers = false",
     [](Case& value) {
       return std::exchange(value.ddp.broadcast_buffers, false) &&
              !buffer_names(value.model).empty();
     }},
    {"agreed_skip",
     "tell the other ranks that a rank skips the step or fails in it, and let all of them skip it",
     [](Case& value) {
       return change_alone(
           value, [](const AtSpec& at) { return at.skip_step || at.detach || !at.raise.empty(); },
           [](AtSpec& at) {
             at = on_all_ranks(at);
             at.skip_step = true;
           });
     }},
    {"leave_together",
     "tell the other ranks that a rank leaves or fails, and let all of them end in that step",
     leave_together},
    {"evaluate_on_all_ranks", "let all ranks evaluate when one does",
     [](Case& value) {
       return change_alone(value, evaluates_wrapper, [](AtSpec& at) { at.ranks.clear(); });
     }},
    {"collective_on_all_ranks", "let all ranks issue the collective that some issue alone",
     [](Case& value) {
       return change_alone(
           value, [](const AtSpec& at) { return !at.collective.empty(); },
           [](AtSpec& at) { at.ranks.clear(); });
     }},
    {"without_extra_collective", "leave out the collective that some ranks issue alone",
     [](Case& value) {
       return erase_alone(value, [](const AtSpec& at) { return !at.collective.empty(); });
     }},
    {"run_all_blocks",
     "let every rank run the blocks that others run, and multiply what is not wanted by zero",
     [](Case& value) {
       return erase_alone(value, [](const AtSpec& at) { return at.is_routing(); });
     }},
    {"all_ranks", "let all ranks do what some do alone (agree on it first)",
     [](Case& value) {
       return change_alone(value, disturbs, [](AtSpec& at) { at.ranks.clear(); });
     }},
    {"without_fault", "take the planted mistakes out",
     [](Case& value) { return !std::exchange(value.faults, {}).empty(); }},
};

// Empty if the case passes; else what happens in the place of that.
std::string what_goes_wrong(const Case& value, Executor& simulator) {
  const Program subject = compile_subject(value);
  const Run run = simulator.execute(subject);
  for (const RankRun& rank : run.ranks) {
    if (rank.ending == Ending::kWaiting) {
      return "deadlock";
    }
  }
  for (const RankRun& rank : run.ranks) {
    if (rank.ending != Ending::kFinished && rank.ending != Ending::kLeft) {
      return fmt::format("rank {} failed with {}", rank.rank, rank.error_kind);
    }
  }
  if (run.mismatch) {
    return "ranks disagree about a collective";
  }
  // A change that keeps what is planted from coming about cures nothing.
  if (const auto never = complaints_about_planted(value, run); !never.empty()) {
    return never.front().substr(0, never.front().find("; "));
  }
  const Run replay = run_replay(compile_replay(value, subject.data), run);
  References references;
  references.ranks = true;
  references.replay = &replay;
  references.num_steps = steps_by_rank(value);
  const auto divergence = compare_runs(run, references).divergence;
  return divergence ? fmt::format("diverged in step {}", divergence->step) : "";
}

std::string try_out(const Case& value, Executor& simulator) {
  try {
    return what_goes_wrong(value, simulator);
  } catch (const InvariantError&) {
    throw;
  } catch (const std::exception& error) {
    // The references may fail as the ranks would; or there are no such steps.
    return fmt::format("cannot be run: {}", error.what());
  }
}

}  // namespace

CureSearch find_cures(const Case& value, Executor& simulator, const std::string& also) {
  CureSearch search;
  for (const Candidate& candidate : kCandidates) {
    Case changed = value;
    if ((search.cure && also != candidate.name) || !candidate.change(changed)) {
      continue;
    }
    TriedCure tried{candidate.name, false, try_out(changed, simulator)};
    tried.proven = tried.instead.empty();
    if (tried.proven && !search.cure) {
      search.cure = Cure{candidate.name,
                         fmt::format("{}: run again on the same schedule, every rank finished with "
                                     "the right bits",
                                     candidate.advice)};
    }
    search.tried.push_back(std::move(tried));
  }
  return search;
}

}  // namespace lockstep::harness
