// SPDX-License-Identifier: Apache-2.0
// The path, its branches, and what need not be tried.
#include "sim/exhaustive_search.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace lockstep::sim {
namespace {

bool contains(const std::vector<Actor>& actors, Actor actor) {
  return std::find(actors.begin(), actors.end(), actor) != actors.end();
}

// A set of actors such that what others do first never depends on them: those of one settled rank
// where there is one, else all.
std::vector<Actor> persistent_set(const Decision& decision) {
  for (const Actor actor : decision.actors) {
    const std::int64_t rank = rank_of(actor);
    if (decision.settled[static_cast<std::size_t>(rank)]) {
      std::vector<Actor> of_rank;
      for (const Actor other : decision.actors) {
        if (rank_of(other) == rank) {
          of_rank.push_back(other);
        }
      }
      return of_rank;
    }
  }
  return decision.actors;
}

}  // namespace

bool ExhaustiveSearch::begin() {
  depth_ = 0;
  if (std::exchange(started_, true)) {
    count_orders_of_run();
    while (!path_.empty() && path_.back().untried.empty()) {
      path_.pop_back();
    }
    if (path_.empty()) {
      return false;
    }
    Node& node = path_.back();
    if (reduce_) {
      node.asleep.push_back(node.choice.actor);
    }
    node.choice.actor = node.untried.front();
    node.untried.erase(node.untried.begin());
  }
  ++num_begun_;
  given_up_ = false;
  return true;
}

void ExhaustiveSearch::count_orders_of_run() {
  if (given_up_ || !num_orders_) {
    return;
  }
  std::vector<Choice> run;
  run.reserve(path_.size());
  for (const Node& node : path_) {
    run.push_back(node.choice);
  }
  const auto orders = count_orders(run);
  num_orders_ = orders ? std::optional(*num_orders_ + *orders) : std::nullopt;
}

Actor ExhaustiveSearch::next(const Decision& decision) {
  LOCKSTEP_CHECK(!decision.actors.empty(), "nobody can run");
  if (depth_ == path_.size()) {
    Node node = open(decision);
    if (node.choice.actor == kAbandon) {
      ++num_abandoned_;
      given_up_ = true;
      return kAbandon;
    }
    path_.push_back(std::move(node));
  }
  const Actor chosen = path_[depth_++].choice.actor;
  LOCKSTEP_CHECK(
      contains(decision.actors, chosen),
      "decision {} of a repeated schedule has other actors than before: the program does "
      "not always do the same",
      depth_ - 1);
  return chosen;
}

ExhaustiveSearch::Node ExhaustiveSearch::open(const Decision& decision) const {
  Node node;
  node.choice = {0, decision.issued, decision.completed, decision.now_ns, decision.failed};
  if (!reduce_) {
    node.choice.actor = decision.actors.front();
    node.untried.assign(decision.actors.begin() + 1, decision.actors.end());
    return node;
  }
  if (!path_.empty()) {
    const Node& parent = path_.back();
    for (const Actor actor : parent.asleep) {
      if (rank_of(actor) != rank_of(parent.choice.actor)) {
        node.asleep.push_back(actor);
      }
    }
  }
  for (const Actor actor : persistent_set(decision)) {
    if (!contains(node.asleep, actor)) {
      node.untried.push_back(actor);
    }
  }
  if (node.untried.empty()) {
    node.choice.actor = kAbandon;
    return node;
  }
  node.choice.actor = node.untried.front();
  node.untried.erase(node.untried.begin());
  return node;
}

}  // namespace lockstep::sim
