// SPDX-License-Identifier: Apache-2.0
// Runs a case, holds it against what it promises, and names the outcome.
#include "harness/judge/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "core/check.h"
#include "harness/judge/cause_hypotheses.h"
#include "harness/judge/cures.h"
#include "harness/judge/divergence.h"
#include "harness/judge/lost_gradients.h"
#include "harness/judge/standstill.h"
#include "harness/judge/wait_for.h"
#include "harness/launch.h"
#include "harness/model.h"
#include "harness/program.h"
#include "harness/reference/derived_bound.h"
#include "harness/reference/reference.h"
#include "harness/snapshot.h"

namespace lockstep::harness {

namespace {

bool promises(const ExpectSpec& expect, const std::string& oracle) {
  return std::find(expect.oracles.begin(), expect.oracles.end(), oracle) != expect.oracles.end();
}

bool any_ending(const Run& run, Ending ending) {
  return std::any_of(run.ranks.begin(), run.ranks.end(),
                     [&](const RankRun& rank) { return rank.ending == ending; });
}

RankState state_of(const Case& value, const RankRun& rank) {
  return {rank.rank,       rank.ending,
          rank.at_step,    rank.at_phase,
          rank.waiting,    rank.never_ready,
          rank.error_kind, rank.error_message,
          rank.signal,     done_alone(value, rank)};
}

// Steps from the first to the last that some rank completed.
std::int64_t num_steps_made(const Run& run) {
  std::int64_t count = 0;
  for (const RankRun& rank : run.ranks) {
    count = std::max(count, rank.steps.empty() ? 0 : rank.steps.back().step + 1);
  }
  return count;
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0.0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

Program first_steps(Program program, std::int64_t count) {
  for (RankProgram& rank : program.ranks) {
    rank.steps.resize(std::min(rank.steps.size(), static_cast<std::size_t>(count)));
  }
  return program;
}

// Everything the references computed for one case.
struct Evidence {
  Program replay_program;
  std::optional<Run> replay, serial;
  std::optional<DerivedBound> bound;
  std::optional<Run> exact;  // float64, for losses, where no bound is derived
};

class Judge {
 public:
  Judge(const Case& value, const ExpectSpec& expect, const Run& subject, Executor* simulator)
      : value_(value), expect_(expect), subject_(subject), simulator_(simulator) {}

  Outcome judge() {
    if (is_failed_launch(subject_)) {
      return failed_launch();
    }
    const bool ended_well =
        std::all_of(subject_.ranks.begin(), subject_.ranks.end(), [](const RankRun& rank) {
          return rank.ending == Ending::kFinished || rank.ending == Ending::kLeft;
        });
    try {
      // What no rank came to is not compared.
      run_references(ended_well ? value_.train.steps : num_steps_made(subject_), ended_well);
    } catch (const InvariantError&) {
      throw;
    } catch (const std::exception& error) {
      if (ended_well) {
        return failed_reference(error);
      }
      // What fails on every rank may fail in one process too; then only the endings count.
      evidence_ = Evidence();
    }
    note_oracles();
    if (!judge_endings()) {
      judge_numbers();
    }
    return std::move(outcome_);
  }

  std::vector<StepSummary> steps() const {
    std::vector<StepSummary> summaries;
    const std::int64_t num_steps = num_steps_made(subject_);
    for (std::int64_t step = 0; step < num_steps; ++step) {
      StepSummary summary;
      summary.step = step;
      for (const RankRun& rank : subject_.ranks) {
        const StepRecord* record = find_step(rank, step);
        summary.checksums.push_back(record != nullptr ? checksum(record->parameters) : 0);
        if (record != nullptr) {
          summary.losses.push_back(mean_of(record->losses));
        }
      }
      if (!summary.losses.empty()) {
        add_reference(summary);
        summaries.push_back(std::move(summary));
      }
    }
    return summaries;
  }

 private:
  // Nobody has trained, so that there are no numbers.
  Outcome failed_launch() {
    outcome_.kind = OutcomeKind::kError;
    for (const RankRun& process : subject_.ranks) {
      outcome_.ranks.push_back(state_of(value_, process));
    }
    outcome_.reason = reason_of(outcome_);
    return std::move(outcome_);
  }

  // The ranks did something else than was meant, for that cannot be done.
  Outcome failed_reference(const std::exception& error) {
    outcome_.kind = OutcomeKind::kError;
    for (const RankRun& rank : subject_.ranks) {
      outcome_.ranks.push_back(state_of(value_, rank));
    }
    const auto* const libtorch = dynamic_cast<const c10::Error*>(&error);
    outcome_.reason = fmt::format(
        "all ranks ended well, but the reference, which does what was meant, failed with: {}",
        libtorch != nullptr ? libtorch->what_without_backtrace() : error.what());
    return std::move(outcome_);
  }

  // Those that were held up against the subject, which may be fewer than were asked for.
  void note_oracles() {
    if (promises(expect_, "ranks")) {
      outcome_.oracles.emplace_back("ranks");
    }
    if (evidence_.replay) {
      outcome_.oracles.emplace_back("replay");
    }
    if (evidence_.serial || evidence_.bound) {
      outcome_.oracles.emplace_back("serial");
    }
  }

  void run_references(std::int64_t num_steps, bool ended_well) {
    const auto data = draw_data(value_);
    evidence_.replay_program = first_steps(compile_replay(value_, data), num_steps);
    if (promises(expect_, "replay")) {
      evidence_.replay = run_replay(evidence_.replay_program, subject_);
    }
    if (!promises(expect_, "serial") || !why_no_serial(value_).empty()) {
      return;
    }
    Program serial = first_steps(compile_serial(value_, data), num_steps);
    if (value_.data.exact || is_one_batch(value_)) {
      evidence_.serial = run_serial(serial, {value_.model.dtype, 0, 1});
    } else if (ended_well || !evidence_.replay) {
      evidence_.bound.emplace(std::move(serial));
    } else {
      // The replay, which needs no bound, says already whether something was wrong before the end.
      evidence_.exact = run_serial(serial, {"float64", 0, 1});
    }
  }

  // Returns true if how the ranks ended decides the outcome.
  bool judge_endings() {
    if (any_ending(subject_, Ending::kCrashed)) {
      outcome_.kind = OutcomeKind::kCrash;
    } else if (any_ending(subject_, Ending::kWaiting)) {
      outcome_.kind = OutcomeKind::kDeadlock;
    } else if (any_ending(subject_, Ending::kFailed)) {
      outcome_.kind = OutcomeKind::kError;
    } else {
      return refuse_inexact();
    }
    for (const RankRun& rank : subject_.ranks) {
      outcome_.ranks.push_back(state_of(value_, rank));
    }
    outcome_.mismatch = subject_.mismatch;
    outcome_.stuck = stuck_collectives(subject_);
    outcome_.divergence = compare().divergence;
    explain();
    if (outcome_.kind == OutcomeKind::kDeadlock) {
      outcome_.wait_for_text = wait_for_text(outcome_.ranks);
      outcome_.wait_for_dot = wait_for_dot(outcome_.ranks);
    }
    if (outcome_.kind != OutcomeKind::kCrash) {
      search_cure();
    }
    outcome_.reason = reason_of(outcome_);
    return true;
  }

  // What led to a bad end, once the ranks and the kind are known.
  void explain() {
    const bool lost =
        std::any_of(outcome_.ranks.begin(), outcome_.ranks.end(),
                    [](const RankState& state) { return !state.never_ready.empty(); });
    if (lost) {
      explain_never_ready(compile_subject(value_, evidence_.replay_program.data), outcome_.ranks);
    }
    outcome_.wrong_pairing = first_wrong_pairing(subject_);
    outcome_.diagnoses = diagnoses_of(outcome_);
  }

  void search_cure() {
    if (simulator_ != nullptr) {
      CureSearch search = find_cures(value_, *simulator_, expect_.cure);
      outcome_.cure = std::move(search.cure);
      outcome_.cures_tried = std::move(search.tried);
    }
  }

  // A case that claims to be exact and is not proves nothing: it is refused.
  bool refuse_inexact() {
    if (!value_.data.exact) {
      return false;
    }
    const std::string where = inexact_place();
    if (where.empty()) {
      return false;
    }
    outcome_.kind = OutcomeKind::kError;
    RankState state;
    state.ending = Ending::kFailed;
    state.error_kind = "not_exact";
    state.error_message = where;
    outcome_.ranks.push_back(std::move(state));
    outcome_.reason = "the case claims data.exact = true, but " + where +
                      "; fewer steps, smaller batches, power-of-two sizes or loss = \"dot\" keep "
                      "more cases exact, data.exact = false takes the derived bound";
    return true;
  }

  std::string inexact_place() const {
    const auto search = [](const Run& run, const char* whose) -> std::string {
      for (const RankRun& rank : run.ranks) {
        for (const StepRecord& record : rank.steps) {
          if (!record.inexact_in.empty()) {
            return fmt::format("{} rounded in {} of step {} (rank {})", whose, record.inexact_in,
                               record.step, rank.rank);
          }
        }
      }
      return {};
    };
    std::string where = search(subject_, "the subject");
    if (where.empty() && evidence_.replay) {
      where = search(*evidence_.replay, "the replay reference");
    }
    if (where.empty() && evidence_.serial) {
      where = search(*evidence_.serial, "the serial reference");
      if (where.empty() && !agrees_with_float64()) {
        where = "the float32 and float64 references differ";
      }
    }
    return where;
  }

  bool agrees_with_float64() const {
    const Run wide = run_serial(compile_serial(value_), {"float64", 0, 1});
    const auto& narrow_steps = evidence_.serial->ranks.front().steps;
    for (std::size_t at = 0; at < narrow_steps.size(); ++at) {
      const Snapshot& narrow = narrow_steps[at].parameters;
      const Snapshot& reference = wide.ranks.front().steps[at].parameters;
      for (std::size_t slot = 0; slot < narrow.slots->size(); ++slot) {
        if (!plain(tensor_of(narrow, (*narrow.slots)[slot]))
                 .to(at::kDouble)
                 .equal(plain(tensor_of(reference, (*reference.slots)[slot])))) {
          return false;
        }
      }
    }
    return true;
  }

  Comparison compare() const {
    References references;
    references.ranks = promises(expect_, "ranks");
    references.num_steps = steps_by_rank(value_);
    references.replay = evidence_.replay ? &*evidence_.replay : nullptr;
    references.serial = evidence_.serial ? &*evidence_.serial : nullptr;
    references.bound = evidence_.bound ? &*evidence_.bound : nullptr;
    references.undefined_is_zero = !reduces_in_backward(value_.ddp);
    return compare_runs(subject_, references);
  }

  void judge_numbers() {
    Comparison comparison = compare();
    outcome_.worst = comparison.worst;
    if (comparison.divergence) {
      outcome_.kind = OutcomeKind::kDiverged;
      outcome_.divergence = std::move(comparison.divergence);
      const Run& replayed =
          evidence_.replay
              ? *evidence_.replay
              : evidence_.replay.emplace(run_replay(evidence_.replay_program, subject_));
      if (evidence_.bound) {
        // In the model's own dtype, as the subject's numbers are.
        evidence_.serial = run_serial(compile_serial(value_, evidence_.replay_program.data),
                                      {value_.model.dtype, 0, 1});
      }
      outcome_.divergence->causes =
          causes_of(*outcome_.divergence, evidence_.replay_program, subject_, replayed, serial());
      // A reduction that was never finished is the likeliest reason; say so with its parameters.
      for (const RankRun& rank : subject_.ranks) {
        if (!rank.never_ready.empty()) {
          outcome_.ranks.push_back(state_of(value_, rank));
        }
      }
      explain();
      // Wrong numbers have causes; what was never finished or wrongly paired has cures.
      if (!outcome_.diagnoses.empty()) {
        search_cure();
      }
    } else {
      outcome_.kind = evidence_.bound ? OutcomeKind::kWithinBound : OutcomeKind::kEqual;
    }
    outcome_.reason = reason_of(outcome_);
  }

  const Run* serial() const {
    if (evidence_.serial) {
      return &*evidence_.serial;
    }
    if (evidence_.bound) {
      return &evidence_.bound->exact();
    }
    return evidence_.exact ? &*evidence_.exact : nullptr;
  }

  void add_reference(StepSummary& summary) const {
    const Run* serial = this->serial();
    const StepRecord* of_serial =
        serial != nullptr ? find_step(serial->ranks.front(), summary.step) : nullptr;
    if (of_serial != nullptr) {
      summary.reference_loss = mean_of(of_serial->losses);
    }
    const StepRecord* of_replay =
        evidence_.replay ? find_step(evidence_.replay->ranks.front(), summary.step) : nullptr;
    if (of_replay == nullptr) {
      return;
    }
    summary.reference_checksum = checksum(of_replay->parameters);
    if (serial == nullptr) {
      std::vector<double> losses;
      for (const RankRun& rank : evidence_.replay->ranks) {
        const StepRecord* record = find_step(rank, summary.step);
        if (record != nullptr && !record->losses.empty()) {
          losses.push_back(mean_of(record->losses));
        }
      }
      summary.reference_loss = mean_of(losses);
    }
  }

  const Case& value_;  // outlive this: arguments of judge_run
  const ExpectSpec& expect_;
  const Run& subject_;
  Executor* simulator_;
  Evidence evidence_;
  Outcome outcome_;
};

}  // namespace

Outcome judge_run(const Case& value, const ExpectSpec& expect, const Run& subject,
                  Executor* simulator, std::vector<StepSummary>* steps) {
  Judge judge(value, expect, subject, simulator);
  Outcome outcome = judge.judge();
  if (steps != nullptr) {
    *steps = judge.steps();
  }
  return outcome;
}

}  // namespace lockstep::harness
