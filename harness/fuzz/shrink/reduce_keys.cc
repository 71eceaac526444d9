// SPDX-License-Identifier: Apache-2.0
// Defaults, shorter lists and lower numbers for every key of the schema.
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/fuzz/shrink/reductions.h"
#include "harness/scenario/schema.h"

namespace lockstep::harness::fuzz {

namespace {

struct KeyEdits {
  std::vector<Edit> resets;   ///< each puts one key at its default
  std::vector<Edit> lowered;  ///< each makes one value lower, or one list shorter
};

/// Visitor of the schema (see its note) that collects edits of one table and those within it.
template <class S>
class Collector {
 public:
  using Place = std::function<S&(Case&)>;

  Collector(const S& value, Place place, KeyEdits& edits)
      : value_(value), place_(std::move(place)), edits_(edits) {
    describe(*this, Of<S>{});
  }

  template <class T, class C>
  void field(const char* key, T S::*member, const C& constraint, const char*) {
    if (value_.*member == defaults_.*member || is_left_alone(key)) return;
    edits_.resets.push_back(
        [place = place_, member](Case& value) { place(value).*member = S{}.*member; });
    lower(member, constraint);
  }
  template <class T, class C>
  void needed(const char*, T S::*, const C&, const char*) {}
  template <class T, class C>
  void one_or_many(const char* key, const char*, T S::*member, const C& list, const char* doc) {
    field(key, member, list, doc);
  }
  template <class T>
  void table(const char* key, T S::*member, const char*) {
    if (is_left_alone(key)) return;
    const T& table = value_.*member;
    KeyEdits within;
    Collector<T>(
        table, [place = place_, member](Case& value) -> T& { return place(value).*member; },
        within);
    // The keys of an optimizer, or of a launch, are about each other.
    if (within.resets.size() > 1 && !std::is_same_v<S, Case>) {
      edits_.resets.push_back(
          [place = place_, member](Case& value) { place(value).*member = T{}; });
    }
    add_all(within);
  }
  template <class T>
  void tables(const char*, std::vector<T> S::*member, TablesPlace where, const char*) {
    if (where == TablesPlace::kSections) return;
    shorten(member, 0);
    for (std::size_t i = 0; i < (value_.*member).size(); ++i) {
      Collector<T>((value_.*member)[i], item_of(member, i), edits_);
    }
  }
  void expectations(const char*) {}

  /// A place that is the default where a list has become too short for it.
  template <class T>
  std::function<T&(Case&)> item_of(std::vector<T> S::*member, std::size_t i) const {
    return [place = place_, member, i](Case& value) -> T& {
      static thread_local T nobody;
      std::vector<T>& list = place(value).*member;
      return i < list.size() ? list[i] : nobody;
    };
  }

 private:
  /// Other reductions see to these, with what depends on them; and the subject stays what it is.
  static bool is_left_alone(const std::string& key) {
    static const char* const kOfCase[] = {"title", "schedule"};
    static const char* const kOfTables[] = {
        "ranks",          "steps",         "steps_of_rank", "kind",   "widths",
        "batch_per_rank", "micro_batches", "sync",          "blocks", "forwards_per_backward"};
    if constexpr (std::is_same_v<S, Case>) {
      return std::find(std::begin(kOfCase), std::end(kOfCase), key) != std::end(kOfCase);
    } else if constexpr (std::is_same_v<S, WorldSpec> || std::is_same_v<S, ModelSpec> ||
                         std::is_same_v<S, TrainSpec> || std::is_same_v<S, DdpSpec>) {
      return std::find(std::begin(kOfTables), std::end(kOfTables), key) != std::end(kOfTables);
    } else {
      return false;
    }
  }

  void add_all(const KeyEdits& within) {
    edits_.resets.insert(edits_.resets.end(), within.resets.begin(), within.resets.end());
    edits_.lowered.insert(edits_.lowered.end(), within.lowered.begin(), within.lowered.end());
  }

  template <class T>
  void set(T S::*member, T to) {
    edits_.lowered.push_back(
        [place = place_, member, to = std::move(to)](Case& value) { place(value).*member = to; });
  }

  /// Integers, plain and optional.
  template <class T>
  void lower(T S::*member, const IntRange& range) {
    using Number =
        std::conditional_t<std::is_same_v<T, std::uint64_t>, std::uint64_t, std::int64_t>;
    const Number now = *std::optional<Number>(value_.*member);
    for (const Number to : {static_cast<Number>(range.min), Number{1}, Number{2}, now / 2}) {
      if (to < now && to >= static_cast<Number>(range.min)) set(member, T(to));
    }
  }
  template <class T>
  void lower(T S::*member, const RealRange& range) {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>) {
      for (const double to : {0.0, 1.0, 0.5, 0.1}) {
        if (to > range.min || (to == range.min && !range.above_min)) set(member, T(to));
      }
    }
  }
  /// Names that stand before this one.
  void lower(std::string S::*member, const Choices& choices) {
    for (const std::string& name : names_of(choices)) {
      if (name == value_.*member) return;
      set(member, name);
    }
  }
  void lower(std::string S::*member, const Text&) { set(member, std::string("x")); }
  template <class T, class C>
  void lower(std::vector<T> S::*member, const ListOf<C>& list) {
    shorten(member, static_cast<std::size_t>(list.min_items));
  }
  template <class T>
  void lower(T S::*, const Any&) {}
  template <class T>
  void lower(T S::*, const Stages&) {}
  template <class T>
  void lower(T S::*, const OrderedTexts&) {}

  /// Either half of a list, then the list without one of its first items.
  template <class T>
  void shorten(std::vector<T> S::*member, std::size_t min_items) {
    constexpr std::size_t kSinglesMax = 8;
    const std::vector<T>& now = value_.*member;
    const std::size_t half = now.size() / 2;
    const auto keep = [&](std::size_t begin, std::size_t end) {
      if (end - begin < now.size() && end - begin >= min_items && end > begin) {
        const auto at = [&](std::size_t i) { return now.begin() + static_cast<std::ptrdiff_t>(i); };
        set(member, std::vector<T>(at(begin), at(end)));
      }
    };
    keep(0, half);
    keep(half, now.size());
    if (now.size() <= min_items || now.size() < 3) return;
    for (std::size_t i = 0; i < std::min(now.size(), kSinglesMax); ++i) {
      std::vector<T> rest = now;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      set(member, std::move(rest));
    }
  }

  const S& value_;
  const S defaults_{};
  const Place place_;
  KeyEdits& edits_;
};

KeyEdits edits_of_tables(const Case& value) {
  KeyEdits edits;
  Collector<Case>(
      value, [](Case& it) -> Case& { return it; }, edits);
  return edits;
}

/// The same of the entries of a list.
template <class Entry>
void collect_entries(const Case& value, std::vector<Entry> Case::*member, KeyEdits& edits) {
  for (std::size_t i = 0; i < (value.*member).size(); ++i) {
    Collector<Entry>((value.*member)[i],
                     [member, i](Case& it) -> Entry& { return (it.*member)[i]; }, edits);
  }
}

/// From the last to the first, so that what was erased does not move what is to be.
template <class Entry>
void collect_erasures(const Case& value, std::vector<Entry> Case::*member,
                      std::vector<Edit>& erasures) {
  for (std::size_t i = (value.*member).size(); i-- > 0;) {
    erasures.push_back([member, i](Case& it) {
      (it.*member).erase((it.*member).begin() + static_cast<std::ptrdiff_t>(i));
    });
  }
}

}  // namespace

void reduce_entries(Candidates& candidates) {
  std::vector<Edit> erasures;
  collect_erasures(candidates.value(), &Case::faults, erasures);
  collect_erasures(candidates.value(), &Case::at, erasures);
  candidates.add_chunks(erasures);
}

void reduce_options(Candidates& candidates) {
  candidates.add_chunks(edits_of_tables(candidates.value()).resets);
  candidates.add([](Case& value) {
    value.data.kind = DataSpec{}.kind;
    value.train.loss = TrainSpec{}.loss;
  });
  candidates.add([](Case& value) {
    value.data.exact = false;
    value.train.optimizer = {};
  });
}

void reduce_places(Candidates& candidates) {
  KeyEdits edits;
  collect_entries(candidates.value(), &Case::at, edits);
  collect_entries(candidates.value(), &Case::faults, edits);
  candidates.add_chunks(edits.resets);
  for (const Edit& edit : edits.lowered) candidates.add(edit);
  const auto move_to_start = [](auto& entries) {
    for (auto& entry : entries) {
      for (std::vector<std::int64_t>* list : {&entry.ranks, &entry.steps}) {
        if (!list->empty()) list->assign(1, 0);
      }
    }
  };
  candidates.add([&](Case& value) {
    move_to_start(value.at);
    move_to_start(value.faults);
  });
  const auto lower_items = [&](auto member, auto list) {
    for (std::size_t i = 0; i < (candidates.value().*member).size(); ++i) {
      for (const std::int64_t by : {std::int64_t{1'000'000}, std::int64_t{1}}) {
        candidates.add([=](Case& value) {
          for (std::int64_t& item : (value.*member)[i].*list) {
            item = std::max<std::int64_t>(0, item - by);
          }
          auto& items = (value.*member)[i].*list;
          items.erase(std::unique(items.begin(), items.end()), items.end());
        });
      }
    }
  };
  lower_items(&Case::at, &AtSpec::ranks);
  lower_items(&Case::at, &AtSpec::steps);
  lower_items(&Case::faults, &FaultSpec::ranks);
  lower_items(&Case::faults, &FaultSpec::steps);
}

void reduce_numbers(Candidates& candidates) {
  for (const Edit& edit : edits_of_tables(candidates.value()).lowered) candidates.add(edit);
}

}  // namespace lockstep::harness::fuzz
