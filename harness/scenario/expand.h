// SPDX-License-Identifier: Apache-2.0
// A file with axes to all of its points, whatever the file is read into.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/scenario.h"
#include "harness/scenario/tree.h"
#include "harness/scenario/variation.h"

namespace lockstep::harness {

/// Where the first key is that the file has; if it has none, the table that the first would be in.
inline TextPosition cite(const TreeNode& tree, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const Located located = locate(tree, key);
    if (located.complete) return located.where;
  }
  return locate(tree, keys.front()).where;
}

/// Contradictions of all cases of a file: each once, with the first case that has it.
class CaseFindings {
 public:
  template <class T>
  void check(T& value, const TreeNode& tree, const Findings& read, const std::string& name) {
    for (const CaseFinding& finding : check_case(value)) {
      const bool follows_from_another =
          std::any_of(finding.keys.begin(), finding.keys.end(),
                      [&](const std::string& key) { return read.is_spoiled(key); });
      if (follows_from_another) continue;
      const TextPosition where = cite(tree, finding.keys);
      const auto [it, is_new] =
          seen_.try_emplace(std::make_tuple(where.line, where.column, finding.message));
      if (is_new) it->second = {where, name, 0};
      ++it->second.num_cases;
    }
  }

  bool full() const { return seen_.size() >= kMaxFindings; }

  void move_to(Findings& findings) const {
    for (const auto& [key, seen] : seen_) {
      std::string message = std::get<2>(key);
      if (!seen.name.empty()) {
        message += seen.num_cases == 1
                       ? fmt::format(" (case {})", seen.name)
                       : fmt::format(" (case {} and {} more)", seen.name, seen.num_cases - 1);
      }
      findings.add(seen.where, std::move(message));
    }
  }

 private:
  static constexpr std::size_t kMaxFindings = 50;
  struct Seen {
    TextPosition where;
    std::string name;
    std::int64_t num_cases = 0;
  };
  std::map<std::tuple<std::int64_t, std::int64_t, std::string>, Seen> seen_;
};

inline bool is_same_place(TextPosition a, TextPosition b) {
  return a.line == b.line && a.column == b.column;
}

/// Reads every axis value once, the other axes being as the file has them. Of the integers of
/// { first, count } the ends are enough, unless one of them is wrong.
template <class T>
void try_axis_values(const TreeNode& root, const Variation& variation, Findings& findings) {
  for (const Axis& axis : variation.axes) {
    for (std::size_t k = 0; k < axis.keys.size(); ++k) {
      const auto try_value = [&](const TreeNode& value, Findings& into) {
        TreeNode tree = root;
        set_at_path(tree, axis.keys[k].path, axis.keys[k].where, value);
        T ignored;
        read_case(tree, ignored, into);
      };
      for (std::size_t i = 0; i < axis.values.size(); ++i) {
        const TreeNode& value = axis.values[i][k];
        std::size_t last = i;
        while (last + 1 < axis.values.size() &&
               is_same_place(axis.values[last + 1][k].where, value.where)) {
          ++last;
        }
        Findings of_end(findings.file());
        if (last > i) try_value(axis.values[last][k], of_end);
        const std::size_t before = findings.size();
        const std::size_t end = of_end.empty() ? i : last;
        for (; i <= end && findings.size() == before; ++i) try_value(axis.values[i][k], findings);
        i = last;
      }
    }
  }
}

/// A point of a file, with its name ("ranks=2,seed=3"; empty without axes).
template <class T>
struct Expanded {
  Point point;
  std::string name;
  T value;
};

template <class T>
struct Expansion {
  T base;  ///< the file without its axes
  Variation variation;
  std::vector<Expanded<T>> points;  ///< in axis order; of no use if there are findings
};

/// Every point of a file that is read into T: read_case(root, T&, Findings&) and check_case(T) say
/// how, and T::seed draws samples.
template <class T>
Expansion<T> expand(const TreeNode& root, Findings& findings) {
  Expansion<T> all;
  T& base = all.base;
  read_case(root, base, findings);
  const bool base_is_good = findings.empty();
  const Variation& variation = all.variation = read_variation(root, findings);
  if (base_is_good && !findings.empty()) return all;
  // The file's own findings would come again with every axis value.
  Findings of_axes(findings.file());
  if (base_is_good) try_axis_values<T>(root, variation, of_axes);
  const bool axes_are_good = of_axes.empty();
  for (Finding& finding : of_axes.take()) {
    findings.add({finding.line, finding.column}, std::move(finding.message));
  }
  if (!variation.axes.empty() && !(base_is_good && axes_are_good)) return all;

  TreeNode plain = root;
  plain.entries.erase(std::remove_if(plain.entries.begin(), plain.entries.end(),
                                     [](const TreeEntry& entry) { return entry.key == "vary"; }),
                      plain.entries.end());
  CaseFindings contradictions;
  for (const Point& point : choose_points(variation, root, static_cast<std::uint64_t>(base.seed),
                                          num_values(plain), findings)) {
    const TreeNode tree = tree_at(plain, variation, point);
    Expanded<T> named{point, name_at(variation, point), {}};
    Findings again(findings.file());
    read_case(tree, named.value, again);
    contradictions.check(named.value, tree, again, named.name);
    if (contradictions.full()) break;
    all.points.push_back(std::move(named));
  }
  contradictions.move_to(findings);
  return all;
}

}  // namespace lockstep::harness
