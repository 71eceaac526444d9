// SPDX-License-Identifier: Apache-2.0
// Which pairs of options were tried together, and how often.
#include "harness/fuzz/pairs/pair_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "harness/case_facts.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/judge/peer_rules.h"

namespace lockstep::harness::fuzz {

namespace {

constexpr std::size_t kExamplesMax = 4;
constexpr std::size_t kListedMax = 20;

const char* to_string(Cell cell) {
  return cell == Cell::kTried ? "tried" : cell == Cell::kEmpty ? "empty" : "excluded";
}

void add_lines(std::string& out, const std::vector<const Pair*>& pairs) {
  for (std::size_t i = 0; i < std::min(pairs.size(), kListedMax); ++i) {
    out += fmt::format("  {:>6}  {} with {}\n", pairs[i]->count, pairs[i]->first, pairs[i]->second);
  }
  if (pairs.size() > kListedMax) {
    out += fmt::format("          and {} more (--pairs-file has all)\n", pairs.size() - kListedMax);
  }
}

}  // namespace

PairTable::PairTable(const Space& space, bool both_modes, const std::vector<Option>& list)
    : space_(space), both_modes_(both_modes) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (const OptionValue& value : list[i].values) {
      values_.push_back({i, &value, list[i].name + "=" + value.name});
    }
  }
  counts_.assign(values_.size(), std::vector<std::int64_t>(values_.size(), 0));
  examples_.resize(values_.size());
}

void PairTable::add(const Case& value) {
  std::vector<std::size_t> present;
  std::shared_ptr<const Case> kept;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!values_[i].value->has(value)) continue;
    for (const std::size_t other : present) {
      if (values_[other].option != values_[i].option) ++counts_[other][i];
    }
    present.push_back(i);
    if (examples_[i].size() == kExamplesMax) continue;
    if (kept == nullptr) kept = std::make_shared<const Case>(value);
    examples_[i].push_back(kept);
  }
}

bool PairTable::is_drawn(Case& value) const {
  if (value.world.ranks > space_.ranks_max || !expect_as_predicted(value)) return false;
  if (!runs_on(value, space_.backend)) return false;
  if (!both_modes_ && has_mistake(value) != (space_.mode == Mode::kBroken)) return false;
  return !space_.for_peer || (value.ddp.peer_can_stand_in() && why_peer_may_differ(value).empty());
}

bool PairTable::is_possible(std::size_t first, std::size_t second) const {
  const OptionValue& a = *values_[first].value;
  const OptionValue& b = *values_[second].value;
  const auto shows = [&](Case value) { return is_drawn(value) && a.has(value) && b.has(value); };
  Case plain;
  a.put(plain);
  b.put(plain);
  if (shows(std::move(plain))) return true;
  Case other;
  b.put(other);
  a.put(other);
  if (shows(std::move(other))) return true;
  for (const auto& example : examples_[first]) {
    Case value = *example;
    b.put(value);
    if (shows(std::move(value))) return true;
  }
  for (const auto& example : examples_[second]) {
    Case value = *example;
    a.put(value);
    if (shows(std::move(value))) return true;
  }
  return false;
}

std::vector<Pair> PairTable::pairs() const {
  std::vector<Pair> all;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    for (std::size_t j = i + 1; j < values_.size(); ++j) {
      if (values_[i].option == values_[j].option) continue;
      Pair pair{values_[i].name, values_[j].name, counts_[i][j], Cell::kTried};
      if (pair.count == 0) pair.cell = is_possible(i, j) ? Cell::kEmpty : Cell::kExcluded;
      all.push_back(std::move(pair));
    }
  }
  return all;
}

std::int64_t count_of(const std::vector<Pair>& pairs, Cell cell) {
  return std::count_if(pairs.begin(), pairs.end(),
                       [&](const Pair& pair) { return pair.cell == cell; });
}

std::string describe_pairs(const std::vector<Pair>& pairs) {
  const std::int64_t tried = count_of(pairs, Cell::kTried);
  const std::int64_t empty = count_of(pairs, Cell::kEmpty);
  const std::int64_t excluded = count_of(pairs, Cell::kExcluded);
  std::string out = fmt::format(
      "Pairs of options: {} of {} tried ({:.1f} %), {} empty; {} more are excluded by the rules\n",
      tried, tried + empty,
      100.0 * static_cast<double>(tried) /
          static_cast<double>(std::max<std::int64_t>(1, tried + empty)),
      empty, excluded);
  std::vector<const Pair*> least, none;
  for (const Pair& pair : pairs) {
    if (pair.cell == Cell::kTried) least.push_back(&pair);
    if (pair.cell == Cell::kEmpty) none.push_back(&pair);
  }
  std::stable_sort(least.begin(), least.end(),
                   [](const Pair* a, const Pair* b) { return a->count < b->count; });
  least.resize(std::min<std::size_t>(least.size(), 10));
  if (!least.empty()) out += "The least tried:\n";
  add_lines(out, least);
  if (!none.empty()) out += "Empty:\n";
  add_lines(out, none);
  return out;
}

std::string pairs_as_csv(const std::vector<Pair>& pairs) {
  std::string out = "first,second,count,cell\n";
  for (const Pair& pair : pairs) {
    out += fmt::format("\"{}\",\"{}\",{},{}\n", pair.first, pair.second, pair.count,
                       to_string(pair.cell));
  }
  return out;
}

}  // namespace lockstep::harness::fuzz
