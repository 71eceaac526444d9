// SPDX-License-Identifier: Apache-2.0
// From complaints to the kind of what was found.
#include "harness/fuzz/shrink/finding.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

namespace lockstep::harness::fuzz {

namespace {

struct Topic {
  std::string_view words;  ///< in the sentence
  std::string_view name;
};

// The sentences of judge/expectation.cc, planted.cc, judge_schedules.cc and judge_case.cc. Of two
// that fit, the first.
constexpr Topic kComplaints[] = {
    {"expected outcome ", "outcome"},
    {" never came about", "planted"},
    {"expected the first divergence ", "divergence"},
    {" among the diverging ranks", "divergence"},
    {"expected cause ", "cause"},
    {"expected the cure ", "cure"},
    {"expected nobody else to wait", "waiting"},
    {" to wait in ", "waiting"},
    {"expected the parameters never ready", "never_ready"},
    {"expected an error of kind", "error"},
    {"expected bucket all_reduces", "bucket_all_reduces"},
    {"expected bucket rebuilds", "rebuilds"},
    {" to issue [", "issued"},
    {" after step ", "values"},
    {"the numbers depend on the schedule", "schedule"},
    {"does not take the schedule", "replay"},
    {"not exhaustive", "exhaustive"},
    {"undecided", "undecided"},
    {"not end as in the simulator", "simulator"},
    {"was expected to end", "ends"},
    {" (phase ", "ends"},
};

// Those of judge/peer_comparison.cc.
constexpr Topic kPeerDifferences[] = {
    {", gradient ", "gradient"},
    {", parameter ", "parameter"},
    {", buffer ", "buffer"},
    {", optimizer state ", "optimizer"},
    {"has losses", "loss"},
    {", collective ", "collectives"},
    {"did the same, though", "the same"},
};

template <std::size_t N>
std::string topic_of(const std::string& sentence, const Topic (&topics)[N],
                     const std::string& otherwise) {
  const auto* const found = std::find_if(std::begin(topics), std::end(topics), [&](const Topic& t) {
    return sentence.find(t.words) != std::string::npos;
  });
  return found == std::end(topics) ? otherwise : std::string(found->name);
}

std::string error_of(const Outcome& outcome) {
  for (const RankState& state : outcome.ranks) {
    if (state.ending == Ending::kFailed && !state.error_kind.empty()) return state.error_kind;
  }
  return "other";
}

std::string outcome_kind(const Outcome& outcome) {
  switch (outcome.kind) {
    case OutcomeKind::kDiverged:
      return outcome.divergence
                 ? "diverged/" + outcome.divergence->oracle + "/" + outcome.divergence->phase
                 : "diverged";
    case OutcomeKind::kError:
      return "error/" + error_of(outcome);
    default:
      return to_string(outcome.kind);
  }
}

// A case that was given up by whoever judges many has no rank to tell of.
std::string internal_error_kind(const CaseResult& result) {
  if (result.outcome.kind == OutcomeKind::kCrash) return "internal_error/signal";
  const bool too_long = result.internal_error.rfind("not judged within", 0) == 0;
  return too_long ? "internal_error/time" : "internal_error";
}

bool is_about_peer(const std::string& complaint, const PeerComparison& peer) {
  const std::vector<std::string>& differences = peer.differences;
  return std::find(differences.begin(), differences.end(), complaint) != differences.end() ||
         complaint.find("did the same, though") != std::string::npos;
}

// The judge adds it where the case has what makes PyTorch's reducer differ on purpose.
bool is_known_of(const CaseResult& result) {
  return std::any_of(result.complaints.begin(), result.complaints.end(), [](const std::string& it) {
    return it.rfind("cases like this are known to differ", 0) == 0;
  });
}

// Numbers that overflow where the references' do, too, are within no bound; nor is one promised.
bool has_no_bound(const Outcome& outcome) {
  return outcome.kind == OutcomeKind::kDiverged && outcome.divergence &&
         outcome.divergence->oracle == "serial" && outcome.worst &&
         !std::isfinite(outcome.worst->bound);
}

const std::string kProperty = "property/";

}  // namespace

std::string finding_kind(const CaseResult& result) {
  if (result.skipped) return "";
  if (!result.internal_error.empty()) return internal_error_kind(result);
  if (has_no_bound(result.outcome)) return "";
  for (const std::string& complaint : result.complaints) {
    if (result.peer && is_about_peer(complaint, *result.peer)) {
      return "peer/" +
             (is_known_of(result) ? "known" : topic_of(complaint, kPeerDifferences, "ends"));
    }
    const std::string topic = topic_of(complaint, kComplaints, "other");
    return topic == "outcome" ? outcome_kind(result.outcome) : "complaint/" + topic;
  }
  if (!result.broken_properties.empty()) {
    return kProperty + result.broken_properties.front().name;
  }
  return result.as_expected ? "" : "complaint/other";
}

std::string property_of(const std::string& kind) {
  return kind.rfind(kProperty, 0) == 0 ? kind.substr(kProperty.size()) : "";
}

std::string property_of_file(const std::string& path) {
  // "property-NAME-0123456789abcdef.toml" (campaign/corpus.h), where NAME has no '-'.
  const std::string name = path.substr(path.find_last_of('/') + 1), before = "property-";
  const std::size_t end = name.find('-', before.size());
  if (name.rfind(before, 0) != 0 || end == std::string::npos) return "";
  return name.substr(before.size(), end - before.size());
}

}  // namespace lockstep::harness::fuzz
