// SPDX-License-Identifier: Apache-2.0
// Holds what came out of a case against its [expect].
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>

#include "core/time_units.h"
#include "harness/judge/judge.h"
#include "harness/snapshot.h"

namespace lockstep::harness {
namespace {

class Complaints {
 public:
  std::vector<std::string> list;

  template <typename T, typename U>
  void expect(const char* what, const T& expected, const U& actual) {
    if (!(expected == actual)) {
      list.push_back(fmt::format("expected {} {}, got {}", what, expected, actual));
    }
  }
  void expect_text(const char* what, const std::string& expected, const std::string& actual) {
    if (!expected.empty() && expected != actual) {
      list.push_back(fmt::format("expected {} \"{}\", got \"{}\"", what, expected, actual));
    }
  }
};

void check_divergence(const ExpectSpec& expect, const Outcome& outcome, Complaints& complaints) {
  if (!outcome.divergence) {
    return;
  }
  const Divergence& divergence = *outcome.divergence;
  if (expect.step) {
    complaints.expect("the first divergence in step", *expect.step, divergence.step);
  }
  complaints.expect_text("the first divergence in phase", expect.phase, divergence.phase);
  complaints.expect_text("the first divergence in tensor", expect.tensor, divergence.tensor);
  complaints.expect_text("the first divergence to be seen by oracle", expect.oracle,
                         divergence.oracle);
  if (expect.rank && std::find(divergence.ranks.begin(), divergence.ranks.end(), *expect.rank) ==
                         divergence.ranks.end()) {
    complaints.list.push_back(fmt::format("expected rank {} among the diverging ranks, got [{}]",
                                          *expect.rank, fmt::join(divergence.ranks, ", ")));
  }
}

// Of a divergence or of any other bad end.
void check_cause(const ExpectSpec& expect, const Outcome& outcome, Complaints& complaints) {
  if (expect.cause.empty()) {
    return;
  }
  std::vector<std::string> names;
  for (const CauseHypothesis& diagnosis : outcome.diagnoses) {
    names.push_back(diagnosis.name);
  }
  if (outcome.divergence) {
    for (const CauseHypothesis& cause : outcome.divergence->causes) {
      names.push_back(cause.name);
    }
  }
  if (std::find(names.begin(), names.end(), expect.cause) == names.end()) {
    complaints.list.push_back(fmt::format("expected cause \"{}\" among those that fit, got [{}]",
                                          expect.cause, fmt::join(names, ", ")));
  }
}

// Several changes may cure a case; the one that is named must be among those that were proven.
void check_cure(const ExpectSpec& expect, const Outcome& outcome, Complaints& complaints) {
  const bool is_proven = std::any_of(
      outcome.cures_tried.begin(), outcome.cures_tried.end(),
      [&](const TriedCure& tried) { return tried.proven && tried.name == expect.cure; });
  if (!is_proven) {
    complaints.expect_text("the cure", expect.cure, outcome.cure ? outcome.cure->name : "none");
  }
}

bool waits_as_expected(const ExpectWaiting& expected, const RankState& state) {
  if (!state.waiting) {
    return false;
  }
  const WaitingIn& waiting = *state.waiting;
  return (expected.collective.empty() || expected.collective == waiting.collective) &&
         (expected.site.empty() || expected.site == waiting.site) &&
         (!expected.step || *expected.step == waiting.step) &&
         (!expected.bucket || *expected.bucket == waiting.bucket);
}

std::string waiting_text(const RankState& state) {
  if (!state.waiting) {
    return fmt::format("rank {} does not wait", state.rank);
  }
  return fmt::format("rank {} waits in {} ({} {}, step {})", state.rank, state.waiting->collective,
                     state.waiting->site, state.waiting->bucket, state.waiting->step);
}

void check_waiting(const ExpectSpec& expect, const Outcome& outcome, Complaints& complaints) {
  if (expect.waiting.empty()) {
    return;
  }
  for (const RankState& state : outcome.ranks) {
    const auto expected =
        std::find_if(expect.waiting.begin(), expect.waiting.end(),
                     [&](const ExpectWaiting& w) { return w.rank == state.rank; });
    if (expected == expect.waiting.end()) {
      if (state.waiting) {
        complaints.list.push_back("expected nobody else to wait, but " + waiting_text(state));
      }
    } else if (!waits_as_expected(*expected, state)) {
      complaints.list.push_back(fmt::format("expected rank {} to wait in {} {}, but {}",
                                            expected->rank, expected->collective, expected->site,
                                            waiting_text(state)));
    }
  }
}

void check_never_ready(const ExpectSpec& expect, const Outcome& outcome, Complaints& complaints) {
  for (const ExpectNeverReady& expected : expect.never_ready) {
    std::vector<std::string> actual;
    for (const RankState& state : outcome.ranks) {
      if (state.rank == expected.rank) {
        for (const NeverReady& entry : state.never_ready) {
          actual.push_back(entry.parameter);
        }
      }
    }
    std::vector<std::string> wanted = expected.parameters;
    std::sort(wanted.begin(), wanted.end());
    std::sort(actual.begin(), actual.end());
    if (wanted != actual) {
      complaints.list.push_back(
          fmt::format("expected the parameters never ready on rank {} to be [{}], got [{}]",
                      expected.rank, fmt::join(wanted, ", "), fmt::join(actual, ", ")));
    }
  }
}

// `error` and `message` may be met by any rank, or by the one that is named.
void check_error(const ExpectSpec& expect, const Outcome& outcome, Complaints& complaints) {
  if (expect.error.empty() && expect.message.empty() && !expect.rank &&
      !(expect.step && outcome.kind != OutcomeKind::kDiverged)) {
    return;
  }
  std::vector<std::string> seen;
  for (const RankState& state : outcome.ranks) {
    const bool ended_badly = state.ending == Ending::kFailed || state.ending == Ending::kCrashed ||
                             !state.error_kind.empty();
    if (!ended_badly) {
      continue;
    }
    seen.push_back(fmt::format("rank {} in step {}: {} ({})", state.rank, state.at_step,
                               state.error_kind, state.error_message));
    if ((!expect.rank || *expect.rank == state.rank) &&
        (!expect.step || *expect.step == state.at_step) &&
        (expect.error.empty() || expect.error == state.error_kind) &&
        (expect.message.empty() || state.error_message.find(expect.message) != std::string::npos)) {
      return;
    }
  }
  complaints.list.push_back(
      fmt::format("expected an error of kind \"{}\"{}{}{}, got {}", expect.error,
                  expect.rank ? fmt::format(" on rank {}", *expect.rank) : "",
                  expect.step ? fmt::format(" in step {}", *expect.step) : "",
                  expect.message.empty() ? "" : fmt::format(" saying \"{}\"", expect.message),
                  seen.empty() ? "none" : fmt::format("{}", fmt::join(seen, "; "))));
}

}  // namespace

std::vector<std::string> complaints_about(const ExpectSpec& expect, const CaseResult& result) {
  Complaints complaints;
  const Outcome& outcome = result.outcome;
  const std::string kind = to_string(outcome.kind);
  // Bits that are equal are within any bound.
  const bool better = expect.outcome == "within_bound" && kind == "equal";
  if (!better) {
    complaints.expect_text("outcome", expect.outcome, kind);
  }
  if (complaints.list.empty()) {
    if (outcome.kind == OutcomeKind::kDiverged) {
      check_divergence(expect, outcome, complaints);
      check_never_ready(expect, outcome, complaints);
    } else if (outcome.kind == OutcomeKind::kDeadlock) {
      check_waiting(expect, outcome, complaints);
      check_never_ready(expect, outcome, complaints);
      if (!expect.error.empty() || !expect.message.empty()) {
        check_error(expect, outcome, complaints);
      }
    } else if (outcome.kind == OutcomeKind::kError || outcome.kind == OutcomeKind::kCrash) {
      check_error(expect, outcome, complaints);
      check_never_ready(expect, outcome, complaints);
    }
    check_cause(expect, outcome, complaints);
    check_cure(expect, outcome, complaints);
  }
  if (expect.bucket_all_reduces) {
    complaints.expect("bucket all_reduces on rank 0:", *expect.bucket_all_reduces,
                      result.bucket_all_reduces);
  }
  if (expect.rebuilds) {
    complaints.expect("bucket rebuilds on rank 0:", *expect.rebuilds, result.rebuilds);
  }
  return complaints.list;
}

std::vector<std::string> complaints_about_issued(const ExpectSpec& expect, const Run& subject) {
  std::vector<std::string> complaints;
  for (const ExpectIssued& expected : expect.issued) {
    std::vector<std::string> issued;
    for (const CollectiveRecord& record :
         subject.ranks[static_cast<std::size_t>(expected.rank)].collectives) {
      if (record.step == expected.step) {
        issued.push_back(fmt::format("{} {}", record.site, record.numel));
        // The dtype is looked at where it is asked for.
        const std::string with_dtype = fmt::format("{} {}", issued.back(), record.dtype);
        if (issued.size() <= expected.collectives.size() &&
            std::count(expected.collectives[issued.size() - 1].begin(),
                       expected.collectives[issued.size() - 1].end(), ' ') > 1) {
          issued.back() = with_dtype;
        }
      }
    }
    if (issued != expected.collectives) {
      complaints.push_back(fmt::format("expected rank {} to issue [{}] in step {}, got [{}]",
                                       expected.rank, fmt::join(expected.collectives, ", "),
                                       expected.step, fmt::join(issued, ", ")));
    }
  }
  return complaints;
}

namespace {

const Snapshot& snapshot_of(const StepRecord& record, const std::string& phase) {
  return phase == "gradient"    ? record.gradients
         : phase == "parameter" ? record.parameters
         : phase == "buffer"    ? record.buffers
                                : record.optimizer;
}

// Elements in the precision that they are held in.
std::vector<double> numbers_of(const Snapshot& snapshot, const TensorSlot& slot) {
  const at::Tensor tensor = plain(tensor_of(snapshot, slot)).to(at::kDouble).contiguous();
  const auto* const first = tensor.data_ptr<double>();
  return {first, first + tensor.numel()};
}

std::string wrong_numbers(const ExpectValues& expected, const Run& subject) {
  const StepRecord* record =
      find_step(subject.ranks[static_cast<std::size_t>(expected.rank)], expected.step);
  if (record == nullptr) {
    return "the rank did not complete the step";
  }
  const Snapshot& snapshot = snapshot_of(*record, expected.phase);
  for (const TensorSlot& slot : *snapshot.slots) {
    if (slot.name != expected.tensor) {
      continue;
    }
    if (!slot.defined) {
      return expected.numbers.empty() ? "" : "it is undefined";
    }
    const std::vector<double> actual = numbers_of(snapshot, slot);
    std::vector<double> wanted = expected.numbers;
    for (double& number : wanted) {
      number = real_bytes(slot) == 4 ? static_cast<double>(static_cast<float>(number)) : number;
    }
    return wanted == actual && !wanted.empty() ? "" : fmt::format("[{}]", fmt::join(actual, ", "));
  }
  return "there is no such tensor";
}

}  // namespace

std::vector<std::string> complaints_about_values(const ExpectSpec& expect, const Run& subject) {
  std::vector<std::string> complaints;
  for (const ExpectValues& expected : expect.values) {
    const std::string wrong = wrong_numbers(expected, subject);
    if (!wrong.empty()) {
      complaints.push_back(fmt::format(
          "expected {} {} of rank {} after step {} to be {}, got {}", expected.phase,
          expected.tensor, expected.rank, expected.step,
          expected.numbers.empty() ? "undefined"
                                   : fmt::format("[{}]", fmt::join(expected.numbers, ", ")),
          wrong));
    }
  }
  return complaints;
}

namespace {

/// Why a rank does not end as expected; empty if it does.
std::string complaint_about_end(const ExpectEnd& expected, const RankRun& rank) {
  const auto differs = [](const auto& what, const auto& wanted, const auto& got) {
    return fmt::format("{} is {}, expected {}", what, got, wanted);
  };
  if (!expected.ending.empty() && expected.ending != to_string(rank.ending)) {
    return differs("its ending", expected.ending, to_string(rank.ending));
  }
  if (!expected.error.empty() && expected.error != rank.error_kind) {
    return differs("its error", expected.error, rank.error_kind);
  }
  if (rank.error_message.find(expected.message) == std::string::npos) {
    return fmt::format("its message does not say \"{}\"", expected.message);
  }
  if (expected.step && *expected.step != rank.at_step) {
    return differs("its step", *expected.step, rank.at_step);
  }
  if (expected.within_ms && rank.ending == Ending::kWaiting) {
    return "it never ended";
  }
  if (expected.within_ms && rank.ended_at_ns > *expected.within_ms * kNsPerMs) {
    return differs("the virtual time of its end in ms", *expected.within_ms,
                   rank.ended_at_ns / kNsPerMs);
  }
  if (expected.parameters_of_step) {
    const std::int64_t step = *expected.parameters_of_step;
    const StepRecord* const record = find_step(rank, step);
    if (step >= 0 && record == nullptr) {
      return fmt::format("it did not complete step {}", step);
    }
    if (checksum(step < 0 ? rank.initial_parameters : record->parameters) !=
        rank.parameters_at_end) {
      return fmt::format("its parameters at the end are not those after {}",
                         step < 0 ? "construction" : fmt::format("step {}", step));
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> complaints_about_ends(const ExpectSpec& expect, const Run& subject) {
  std::vector<std::string> complaints;
  for (const ExpectEnd& expected : expect.ends) {
    for (const std::int64_t rank : expected.ranks) {
      if (rank >= static_cast<std::int64_t>(subject.ranks.size())) {
        complaints.push_back(fmt::format("rank {} was expected to end, but there are {} only", rank,
                                         subject.ranks.size()));
      }
    }
    for (const RankRun& rank : subject.ranks) {
      const std::string complaint =
          covers(expected.ranks, rank.rank) ? complaint_about_end(expected, rank) : "";
      if (!complaint.empty()) {
        complaints.push_back(fmt::format("rank {} {} in step {} (phase {}) with \"{}\" ({}): {}",
                                         rank.rank, to_string(rank.ending), rank.at_step,
                                         rank.at_phase, rank.error_kind, rank.error_message,
                                         complaint));
      }
    }
  }
  return complaints;
}

}  // namespace lockstep::harness
