// SPDX-License-Identifier: Apache-2.0
// Contradictions in what the entries of [[at]] leave out of the model together.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/model.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {

namespace {

// Several [[at]] may hold at one rank, step, micro-batch and forward; their routes add up. Every
// sum that occurs is checked once, cited at the last entry that takes part in it. The entries are
// parted by one dimension of the place after the other; only those that hold together go on to the
// next.
class RouteSums {
 public:
  RouteSums(const Case& value, std::vector<CaseFinding>& findings)
      : value_(value), findings_(findings) {}

  void check() {
    Entries routing;
    for (std::size_t i = 0; i < value_.at.size(); ++i) {
      if (value_.at[i].is_routing()) routing.push_back(i);
    }
    if (!routing.empty()) part(routing, 0);
    if (visited_.size() < kMaxVisited) return;
    findings_.push_back({{"at"},
                         fmt::format("routes of [[at]] add up in more than {} ways at different "
                                     "places; expected fewer entries, or with places in common",
                                     kMaxVisited)});
  }

 private:
  using Entries = std::vector<std::size_t>;
  static constexpr std::size_t kMaxVisited = 2'000;
  static constexpr int kDimensions = 4;

  /// Where the entry holds in a dimension; empty: everywhere.
  static std::vector<std::int64_t> places_of(const AtSpec& at, int dimension) {
    const auto one = [](const std::optional<std::int64_t>& place) {
      return place ? std::vector<std::int64_t>{*place} : std::vector<std::int64_t>();
    };
    if (dimension == 0) return at.ranks;
    if (dimension == 1) return at.steps;
    return one(dimension == 2 ? at.micro_batch : at.forward);
  }

  std::int64_t num_places(int dimension) const {
    const TrainSpec& train = value_.train;
    const std::int64_t counts[kDimensions] = {value_.world.ranks, train.steps, train.micro_batches,
                                              train.forwards_per_backward};
    return counts[dimension];
  }

  void part(const Entries& entries, int dimension) {
    if (visited_.size() >= kMaxVisited || !visited_.insert({dimension, entries}).second) return;
    if (dimension == kDimensions) {
      check_sum(entries);
      return;
    }
    Entries everywhere;
    std::map<std::int64_t, Entries> at_place;
    for (const std::size_t entry : entries) {
      const std::vector<std::int64_t> places = places_of(value_.at[entry], dimension);
      if (places.empty()) everywhere.push_back(entry);
      for (const std::int64_t place : places) at_place[place].push_back(entry);
    }
    for (const auto& [place, own] : at_place) {
      Entries together;
      std::merge(everywhere.begin(), everywhere.end(), own.begin(), own.end(),
                 std::back_inserter(together));
      part(together, dimension + 1);
    }
    const bool all_named = static_cast<std::int64_t>(at_place.size()) >= num_places(dimension);
    if (!everywhere.empty() && !all_named) part(everywhere, dimension + 1);
  }

  void check_sum(const Entries& entries) {
    Route route;
    for (const std::size_t entry : entries) {
      const AtSpec& at = value_.at[entry];
      route.skip.insert(route.skip.end(), at.skip.begin(), at.skip.end());
      if (!at.exit_after.empty()) route.exit_after = at.exit_after;
      route.mute.insert(route.mute.end(), at.mute.begin(), at.mute.end());
    }
    for (const ModelFinding& finding : check_route(value_.model, value_.data, route)) {
      const std::string key = fmt::format("at.{}.{}", entries.back(), finding.key);
      findings_.push_back({{key, "model"}, fmt::format("{}: {}", key, finding.message)});
    }
  }

  const Case& value_;
  std::vector<CaseFinding>& findings_;
  std::set<std::pair<int, Entries>> visited_;
};

}  // namespace

void check_routes(const Case& value, std::vector<CaseFinding>& findings) {
  RouteSums(value, findings).check();
}

}  // namespace lockstep::harness
