// SPDX-License-Identifier: Apache-2.0
// Single values of a tree: what a constraint allows, and reading by type and constraint.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/schema.h"
#include "harness/scenario/tree.h"

namespace lockstep::harness {

// What a constraint expects of a value, in words.
std::string expected(const Any&, const bool&);
std::string expected(const Any&, const std::string&);
std::string expected(const Text&, const std::string&);
std::string expected(const Version&, const std::string&);
std::string expected(const IntRange& range);
std::string expected(const RealRange& range, const double&);
std::string expected(const Choices& choices, const std::string&);

template <class T>
std::string expected(const IntRange& range, const T&) {
  return expected(range);
}

template <class T, class C>
std::string expected(const C& constraint, const std::optional<T>&) {
  return expected(constraint, T{});
}

template <class T, class C>
std::string expected(const ListOf<C>&, const std::vector<T>&) {
  return "an array";
}

/// A value with the place it was read from.
struct Source {
  const TreeNode& node;
  const std::string& path;
  Findings& findings;

  void reject(const std::string& what_was_expected, const std::string& hint = {}) const {
    findings.add(node.where, fmt::format("{} is {}; expected {}{}", path, describe_value(node),
                                         what_was_expected, hint));
    findings.spoil(path);
  }
};

// One overload per type of member. Each reports what it rejects and returns whether `out` was set.
bool read_value(const Source& from, bool& out, const Any& constraint);
bool read_value(const Source& from, std::int64_t& out, const IntRange& range);
bool read_value(const Source& from, std::uint64_t& out, const IntRange& range);
bool read_value(const Source& from, double& out, const RealRange& range);
bool read_value(const Source& from, std::string& out, const Any& constraint);
bool read_value(const Source& from, std::string& out, const Text& constraint);
bool read_value(const Source& from, std::string& out, const Version& constraint);
bool read_value(const Source& from, std::string& out, const Choices& choices);
bool read_value(const Source& from, std::vector<std::pair<std::string, std::string>>& out,
                const OrderedTexts&);
bool read_value(const Source& from, std::vector<std::vector<std::string>>& out, const Stages&);

template <class T, class C>
bool read_value(const Source& from, std::optional<T>& out, const C& constraint) {
  T value{};
  if (!read_value(from, value, constraint)) return false;
  out = value;
  return true;
}

template <class C>
std::string expected_count(const ListOf<C>& list) {
  return list.min_items == list.max_items
             ? fmt::format("an array of {} items", list.min_items)
             : fmt::format("an array of {} to {} items", list.min_items, list.max_items);
}

template <class T, class C>
bool read_value(const Source& from, std::vector<T>& out, const ListOf<C>& list) {
  if (from.node.kind != TreeNode::Kind::kArray) {
    from.reject("an array");
    return false;
  }
  const auto num_items = static_cast<std::int64_t>(from.node.items.size());
  if (num_items < list.min_items || num_items > list.max_items) {
    from.findings.add(from.node.where, fmt::format("{} has {} items; expected {}", from.path,
                                                   num_items, expected_count(list)));
    from.findings.spoil(from.path);
    return false;
  }
  std::vector<T> values;
  std::set<T> seen;
  bool good = true;
  for (std::size_t i = 0; i < from.node.items.size(); ++i) {
    const std::string path = fmt::format("{}.{}", from.path, i);
    const Source item{from.node.items[i], path, from.findings};
    T value{};
    if (!read_value(item, value, list.item)) {
      good = false;
      continue;
    }
    if (list.unique && !seen.insert(value).second) {
      from.findings.add(item.node.where, fmt::format("{} has {} twice; expected each item once",
                                                     from.path, describe_value(item.node)));
      from.findings.spoil(from.path);
      good = false;
    }
    values.push_back(std::move(value));
  }
  if (good) out = std::move(values);
  return good;
}

}  // namespace lockstep::harness
