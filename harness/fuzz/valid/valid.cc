// SPDX-License-Identifier: Apache-2.0
// Mends a case rule by rule.
#include "harness/fuzz/valid/valid.h"

#include <algorithm>

#include "harness/fuzz/valid/valid_rules.h"
#include "harness/judge/peer_rules.h"
#include "harness/model.h"

namespace lockstep::harness::fuzz {
namespace {

constexpr int kMendsMax = 200;

// The order of mending: a rule may rely on those before it.
const Rule* first_broken(const Facts& facts) {
  for (const auto* rules : {&shape_rules(), &training_rules(), &ddp_rules(), &event_rules()}) {
    for (const Rule& rule : *rules) {
      if (rule.broken(facts)) return &rule;
    }
  }
  return nullptr;
}

/// The first entry that is wrong by itself, and why.
struct WrongEvent {
  std::size_t index = 0;
  const char* why = nullptr;
};

WrongEvent wrong_event(const Facts& facts) {
  for (std::size_t i = 0; i < facts.value.at.size(); ++i) {
    if (const char* why = why_event_is_wrong(facts, facts.value.at[i])) return {i, why};
  }
  return {};
}

// Over PyTorch's reducer one thing less at a time, until nothing is left that it does otherwise.
void simplify_for_peer(Case& value, Dice& dice) {
  const auto erase_events = [&](bool (*holds)(const AtSpec&)) {
    value.at.erase(std::remove_if(value.at.begin(), value.at.end(), holds), value.at.end());
  };
  switch (dice.below(11)) {
    case 0:
      erase_events([](const AtSpec& at) { return at.is_routing() || !at.freeze.empty(); });
      break;
    case 1:
      erase_events([](const AtSpec& at) { return at.evaluate > 0; });
      break;
    case 2:
      value.ddp.static_graph = false;
      break;
    case 3:
      value.ddp.join = "off";
      value.train.steps_of_rank.clear();
      break;
    case 4:
      value.ddp.broadcast_buffers = true;
      break;
    case 5:
      value.train.forwards_per_backward = 1;
      value.train.backward_from = "sum";
      break;
    case 6:
      value.train.sync_on = "every";
      break;
    case 7:
      value.train.loss = value.data.kind == "classification" ? "cross_entropy" : "mse";
      break;
    default:  // a block of a kind that is told apart becomes one that is not
      for (auto& [name, text] : value.model.blocks) {
        for (const char* word : {" sparse", " float64"}) {
          const auto at = text.find(word);
          if (at != std::string::npos) text.erase(at, std::string(word).size());
        }
      }
      value.ddp.checks = "off";
      break;
  }
}

}  // namespace

std::string why_not_valid(const Case& value) {
  const Facts facts(value);
  if (const Rule* rule = first_broken(facts)) return rule->why;
  const char* why = wrong_event(facts).why;
  return why != nullptr ? why : "";
}

bool make_valid(Case& value, const Space& space, Dice& dice) {
  const bool peer = space.for_peer || space.sync == "torch";
  for (int mends = 0; mends < kMendsMax; ++mends) {
    if (!check_model(value.model, value.data).empty()) return false;
    const Facts facts(value);
    if (const Rule* rule = first_broken(facts)) {
      rule->mend(value, dice);
    } else if (const WrongEvent wrong = wrong_event(facts); wrong.why != nullptr) {
      value.at.erase(value.at.begin() + static_cast<std::ptrdiff_t>(wrong.index));
    } else if (peer && !value.ddp.peer_can_stand_in() && value.ddp.sync == "ddp") {
      value.ddp.checks = "off";
      value.ddp.hook = "none";
    } else if (peer && !why_peer_may_differ(value).empty()) {
      simplify_for_peer(value, dice);
    } else {
      return true;
    }
  }
  return false;
}

}  // namespace lockstep::harness::fuzz
