// SPDX-License-Identifier: Apache-2.0
// Reading of single values.
#include "harness/scenario/values.h"

#include <fmt/ranges.h>

#include <cmath>

#include "harness/scenario.h"
#include "harness/scenario/nearest_name.h"

namespace lockstep::harness {

namespace {

template <class Integer>
bool read_integer(const Source& from, Integer& out, const IntRange& range) {
  if (from.node.kind != TreeNode::Kind::kInteger || from.node.integer < range.min ||
      from.node.integer > range.max) {
    from.reject(expected(range, out));
    return false;
  }
  out = static_cast<Integer>(from.node.integer);
  return true;
}

template <class Constraint>
bool read_text(const Source& from, std::string& out, const Constraint& constraint, bool allowed) {
  if (from.node.kind != TreeNode::Kind::kString || !allowed) {
    from.reject(expected(constraint, out));
    return false;
  }
  out = from.node.text;
  return true;
}

}  // namespace

std::string expected(const Any&, const bool&) { return "true or false"; }
std::string expected(const Any&, const std::string&) { return "a string"; }
std::string expected(const Text&, const std::string&) { return "a string that is not empty"; }
std::string expected(const Version&, const std::string&) { return "a version such as \"2.4\""; }

std::string expected(const IntRange& range) {
  if (range.max == kInt64Max) return fmt::format("an integer, at least {}", range.min);
  return fmt::format("an integer from {} to {}", range.min, range.max);
}

std::string expected(const RealRange& range, const double&) {
  const char* least = range.above_min ? "above" : "at least";
  if (range.max >= 1e30) {
    return range.min < 0 ? "a finite number"
                         : fmt::format("a finite number, {} {}", least, range.min);
  }
  if (range.above_min) return fmt::format("a number above {}, at most {}", range.min, range.max);
  return fmt::format("a number from {} to {}", range.min, range.max);
}

std::string expected(const Choices& choices, const std::string&) {
  return fmt::format("one of \"{}\"", fmt::join(names_of(choices), "\", \""));
}

bool read_value(const Source& from, bool& out, const Any& constraint) {
  if (from.node.kind != TreeNode::Kind::kBoolean) {
    from.reject(expected(constraint, out));
    return false;
  }
  out = from.node.boolean;
  return true;
}

bool read_value(const Source& from, std::int64_t& out, const IntRange& range) {
  return read_integer(from, out, range);
}

bool read_value(const Source& from, std::uint64_t& out, const IntRange& range) {
  return read_integer(from, out, range);
}

bool read_value(const Source& from, double& out, const RealRange& range) {
  const bool integer = from.node.kind == TreeNode::Kind::kInteger;
  const double value = integer ? static_cast<double>(from.node.integer) : from.node.real;
  if ((!integer && from.node.kind != TreeNode::Kind::kFloat) || !std::isfinite(value) ||
      value < range.min || value > range.max || (range.above_min && value == range.min)) {
    from.reject(expected(range, out));
    return false;
  }
  out = value;
  return true;
}

bool read_value(const Source& from, std::string& out, const Any& constraint) {
  return read_text(from, out, constraint, true);
}

bool read_value(const Source& from, std::string& out, const Text& constraint) {
  return read_text(from, out, constraint, !from.node.text.empty());
}

bool read_value(const Source& from, std::string& out, const Version& constraint) {
  return read_text(from, out, constraint, version_of(from.node.text).has_value());
}

bool read_value(const Source& from, std::string& out, const Choices& choices) {
  const std::vector<std::string> names = names_of(choices);
  const bool known = std::find(names.begin(), names.end(), from.node.text) != names.end();
  if (from.node.kind == TreeNode::Kind::kString && !known) {
    from.reject(expected(choices, out), did_you_mean(from.node.text, names));
    return false;
  }
  return read_text(from, out, choices, known);
}

bool read_value(const Source& from, std::vector<std::pair<std::string, std::string>>& out,
                const OrderedTexts&) {
  if (from.node.kind != TreeNode::Kind::kTable) {
    from.reject("a table of name = \"type sizes\"");
    return false;
  }
  bool good = true;
  std::vector<std::pair<std::string, std::string>> values;
  for (const TreeEntry& entry : from.node.entries) {
    const std::string path = from.path + "." + entry.key;
    std::string text;
    good = read_value(Source{entry.value, path, from.findings}, text, Text{}) && good;
    values.emplace_back(entry.key, text);
  }
  if (good) out = std::move(values);
  return good;
}

bool read_value(const Source& from, std::vector<std::vector<std::string>>& out, const Stages&) {
  if (from.node.kind != TreeNode::Kind::kArray) {
    from.reject("an array of names and arrays of names");
    return false;
  }
  bool good = true;
  std::vector<std::vector<std::string>> stages;
  for (std::size_t i = 0; i < from.node.items.size(); ++i) {
    const std::string path = fmt::format("{}.{}", from.path, i);
    const Source item{from.node.items[i], path, from.findings};
    std::vector<std::string> stage;
    if (item.node.kind == TreeNode::Kind::kArray) {
      good = read_value(item, stage, ListOf<Text>{{}, 1, 10'000, true}) && good;
    } else if (item.node.kind == TreeNode::Kind::kString) {
      stage.emplace_back();
      good = read_value(item, stage.back(), Text{}) && good;
    } else {
      item.reject("the name of a block or an array of names");
      good = false;
    }
    stages.push_back(std::move(stage));
  }
  if (good) out = std::move(stages);
  return good;
}

}  // namespace lockstep::harness
