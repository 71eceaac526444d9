// SPDX-License-Identifier: Apache-2.0
// Reads axes, names them and applies them to the tree.
#include "harness/scenario/variation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "harness/scenario/nearest_name.h"

namespace lockstep::harness {

namespace {

bool is_span(const TreeNode& node) {
  return node.kind == TreeNode::Kind::kTable && (node.find("first") || node.find("count"));
}

/// The integers of { first = a, count = n }.
std::vector<TreeNode> span_values(const TreeNode& node, const std::string& path,
                                  Findings& findings) {
  std::int64_t numbers[2] = {1, 1};
  const char* keys[2] = {"first", "count"};
  for (std::size_t i = 0; i < 2; ++i) {
    const TreeEntry* entry = node.find(keys[i]);
    if (!entry || entry->value.kind != TreeNode::Kind::kInteger) {
      findings.add(
          entry ? entry->value.where : node.where,
          fmt::format("vary: {}.{} is {}; expected an integer, as in {{ first = 1, count = "
                      "5 }}",
                      path, keys[i], entry ? describe_value(entry->value) : "missing"));
      return {};
    }
    numbers[i] = entry->value.integer;
  }
  for (const TreeEntry& entry : node.entries) {
    if (entry.key == "first" || entry.key == "count") continue;
    findings.add(entry.key_where,
                 fmt::format("vary: unknown key '{}' in {}; expected first, count{}", entry.key,
                             path, did_you_mean(entry.key, {"first", "count"})));
  }
  constexpr std::int64_t kMaxFirst = std::int64_t{1} << 62;
  if (numbers[1] < 1 || numbers[1] > kMaxCases || std::abs(numbers[0]) > kMaxFirst) {
    findings.add(node.where, fmt::format("vary: {} has first = {} and count = {}; expected a count "
                                         "from 1 to {} and first within 2^62",
                                         path, numbers[0], numbers[1], kMaxCases));
    return {};
  }
  std::vector<TreeNode> values;
  for (std::int64_t i = 0; i < numbers[1]; ++i) {
    TreeNode value;
    value.kind = TreeNode::Kind::kInteger;
    value.where = node.where;
    value.integer = numbers[0] + i;
    values.push_back(std::move(value));
  }
  return values;
}

std::vector<TreeNode> axis_values(const TreeNode& node, const std::string& path,
                                  Findings& findings) {
  if (is_span(node)) return span_values(node, path, findings);
  if (node.kind != TreeNode::Kind::kArray) {
    findings.add(node.where, fmt::format("vary: {} is {}; expected an array of values, or {{ first "
                                         "= 1, count = 5 }} for integers",
                                         path, describe_value(node)));
    return {};
  }
  if (node.items.empty()) {
    findings.add(node.where, fmt::format("vary: {} has no values; expected at least one", path));
  }
  return node.items;
}

class VariationReader {
 public:
  VariationReader(const TreeNode& root, Findings& findings) : root_(root), findings_(findings) {}

  Variation read(const TreeNode& vary) {
    read_choice(vary);
    for (const TreeEntry& entry : vary.entries) {
      if (entry.key == "pairwise" || entry.key == "sample") continue;
      if (entry.key == "linked") {
        read_linked(entry.value);
      } else {
        read_axes(entry, entry.key);
      }
    }
    check_paths();
    label_keys();
    return std::move(variation_);
  }

 private:
  void read_choice(const TreeNode& vary) {
    const TreeEntry* pairwise = vary.find("pairwise");
    const TreeEntry* sample = vary.find("sample");
    if (pairwise && pairwise->value.kind != TreeNode::Kind::kBoolean) {
      findings_.add(pairwise->value.where,
                    fmt::format("vary.pairwise is {}; expected true or false",
                                describe_value(pairwise->value)));
    } else if (pairwise && pairwise->value.boolean) {
      variation_.choice = Variation::Choice::kPairwise;
    }
    if (!sample) return;
    const TreeNode& size = sample->value;
    if (size.kind != TreeNode::Kind::kInteger || size.integer < 1 || size.integer > kMaxCases) {
      findings_.add(size.where, fmt::format("vary.sample is {}; expected an integer from 1 to {}",
                                            describe_value(size), kMaxCases));
    } else if (variation_.choice == Variation::Choice::kPairwise) {
      findings_.add(sample->key_where,
                    "vary has both pairwise and sample; expected one of them at most");
    } else {
      variation_.choice = Variation::Choice::kSample;
      variation_.sample_size = size.integer;
    }
  }

  /// `world.ranks = [...]` without quotes is a table within a table.
  void read_axes(const TreeEntry& entry, const std::string& path) {
    if (entry.value.kind == TreeNode::Kind::kTable && !is_span(entry.value)) {
      if (entry.value.entries.empty()) {
        findings_.add(entry.key_where,
                      fmt::format("vary: {} has no values; expected at least one", path));
      }
      for (const TreeEntry& inner : entry.value.entries) read_axes(inner, path + "." + inner.key);
      return;
    }
    Axis axis;
    axis.keys.push_back({path, "", entry.key_where});
    for (TreeNode& value : axis_values(entry.value, path, findings_)) {
      axis.values.push_back({std::move(value)});
    }
    add(std::move(axis));
  }

  void read_linked(const TreeNode& node) {
    if (node.kind == TreeNode::Kind::kArray) {
      for (const TreeNode& item : node.items) read_linked(item);
      return;
    }
    if (node.kind != TreeNode::Kind::kTable || node.entries.empty()) {
      findings_.add(node.where, fmt::format("vary.linked is {}; expected a table of keys that "
                                            "change together, each with its array of values",
                                            node.entries.empty() ? "empty" : describe_value(node)));
      return;
    }
    Axis axis;
    for (const TreeEntry& entry : node.entries) collect_linked(entry, entry.key, axis);
    if (axis.keys.empty()) {
      findings_.add(node.where, "vary.linked has no values; expected at least one key with some");
      return;
    }
    add(std::move(axis));
  }

  void collect_linked(const TreeEntry& entry, const std::string& path, Axis& axis) {
    if (entry.value.kind == TreeNode::Kind::kTable && !is_span(entry.value)) {
      for (const TreeEntry& inner : entry.value.entries) {
        collect_linked(inner, path + "." + inner.key, axis);
      }
      return;
    }
    std::vector<TreeNode> values = axis_values(entry.value, path, findings_);
    if (axis.keys.empty()) {
      axis.values.resize(values.size());
    } else if (values.size() != axis.values.size()) {
      findings_.add(entry.value.where,
                    fmt::format("vary.linked: {} has {} values and {} has {}; expected as many",
                                path, values.size(), axis.keys.front().path, axis.values.size()));
      return;
    }
    axis.keys.push_back({path, "", entry.key_where});
    for (std::size_t i = 0; i < values.size(); ++i) {
      axis.values[i].push_back(std::move(values[i]));
    }
  }

  void add(Axis axis) {
    std::set<std::string> texts;
    for (const std::vector<TreeNode>& value : axis.values) {
      std::string text;
      for (const TreeNode& node : value) text += compact_text(node) + ";";
      if (!value.empty() && !texts.insert(text).second) {
        findings_.add(value.front().where,
                      fmt::format("vary: {} takes the value {} twice; expected each value once",
                                  axis.keys.front().path, compact_text(value.front())));
      }
    }
    variation_.axes.push_back(std::move(axis));
  }

  void check_paths() {
    std::vector<const Axis::Key*> earlier;
    for (const Axis& axis : variation_.axes) {
      for (const Axis::Key& key : axis.keys) {
        check_overlap(key, earlier);
        earlier.push_back(&key);
      }
    }
    TreeNode tree = root_;
    for (const Axis& axis : variation_.axes) {
      for (std::size_t k = 0; k < axis.keys.size(); ++k) {
        const Axis::Key& key = axis.keys[k];
        const std::string head = split_path(key.path).front();
        std::string trouble;
        if (head == "vary" || head == "schema") {
          trouble = fmt::format("'{}' cannot vary", head);
        } else if (!axis.values.empty() && axis.values.front().size() > k) {
          trouble = set_at_path(tree, key.path, key.where, axis.values.front()[k]);
        }
        if (!trouble.empty()) {
          findings_.add(key.where, fmt::format("vary: {} leads nowhere: {}; expected the dotted "
                                               "path of a key of this file, such as world.ranks or "
                                               "at.0.skip",
                                               key.path, trouble));
        }
      }
    }
  }

  void check_overlap(const Axis::Key& key, const std::vector<const Axis::Key*>& earlier) {
    for (const Axis::Key* other : earlier) {
      const bool same = key.path == other->path;
      if (!leads_to(key.path, other->path) && !leads_to(other->path, key.path)) continue;
      findings_.add(key.where,
                    fmt::format("vary: {} {} the axis of line {}; expected each key once", key.path,
                                same ? "is also" : "overlaps with", other->where.line));
    }
  }

  /// The last components that tell a key from all others; never starting with an index.
  void label_keys() {
    std::vector<std::string> paths;
    for (const Axis& axis : variation_.axes) {
      for (const Axis::Key& key : axis.keys) paths.push_back(key.path);
    }
    const auto shares = [&](const std::string& path, const std::string& end) {
      return std::count_if(paths.begin(), paths.end(), [&](const std::string& other) {
               const std::string dotted = "." + other;
               return other != path && dotted.size() > end.size() &&
                      dotted.compare(dotted.size() - end.size() - 1, std::string::npos,
                                     "." + end) == 0;
             }) > 0;
    };
    for (Axis& axis : variation_.axes) {
      for (Axis::Key& key : axis.keys) {
        const std::vector<std::string> parts = split_path(key.path);
        std::string end = parts.back();
        for (std::size_t i = parts.size() - 1; i-- > 0;) {
          const bool is_index = end[0] >= '0' && end[0] <= '9';
          if (!is_index && !shares(key.path, end)) break;
          end = parts[i] + "." + end;
        }
        key.label = end;
      }
    }
  }

  const TreeNode& root_;
  Findings& findings_;
  Variation variation_;
};

}  // namespace

Variation read_variation(const TreeNode& root, Findings& findings) {
  const TreeEntry* entry = root.find("vary");
  if (!entry) return {};
  if (entry->value.kind != TreeNode::Kind::kTable) {
    findings.add(entry->value.where,
                 fmt::format("vary is {}; expected a table of axes", describe_value(entry->value)));
    return {};
  }
  return VariationReader(root, findings).read(entry->value);
}

std::vector<Point> choose_points(const Variation& variation, const TreeNode& root,
                                 std::uint64_t seed, std::int64_t values_per_case,
                                 Findings& findings) {
  std::vector<std::size_t> sizes;
  for (const Axis& axis : variation.axes) sizes.push_back(axis.values.size());
  const auto too_many = [&](const std::string& what, std::int64_t limit, const char* way_out) {
    const TreeEntry* entry = root.find("vary");
    findings.add(entry ? entry->key_where : root.where,
                 fmt::format("vary asks for {}; expected at most {}{}", what, limit, way_out));
    return std::vector<Point>();
  };
  const auto within_limit = [&](std::vector<Point> points) {
    const auto num_cases = static_cast<std::int64_t>(points.size());
    const std::int64_t limit = std::max<std::int64_t>(1, kMaxValuesOfCases / values_per_case);
    if (num_cases <= limit) return points;
    return too_many(fmt::format("{} cases of {} values each", num_cases, values_per_case), limit,
                    "; pairwise = true or sample = N thins them");
  };
  const auto product = product_size(sizes);
  const std::string product_text =
      product ? fmt::format("{} cases", *product) : "more than 2^62 combinations";
  switch (variation.choice) {
    case Variation::Choice::kPairwise: {
      std::size_t num_values = 0;
      for (const std::size_t size : sizes) num_values += size;
      if (sizes.size() > 1 && num_values > kMaxPairwiseValues) {
        return too_many(fmt::format("pairs of {} values", num_values), kMaxPairwiseValues, "");
      }
      auto points = pairwise_points(sizes);
      return points ? within_limit(*std::move(points)) : too_many("more cases", kMaxCases, "");
    }
    case Variation::Choice::kSample:
      if (!product) return too_many(product_text, std::int64_t{1} << 62, "");
      return within_limit(sampled_points(sizes, variation.sample_size, seed));
    case Variation::Choice::kProduct:
      break;
  }
  if (!product || *product > kMaxCases) {
    return too_many(product_text, kMaxCases, "; pairwise = true or sample = N thins them");
  }
  return within_limit(product_points(sizes));
}

TreeNode tree_at(const TreeNode& root, const Variation& variation, const Point& point) {
  TreeNode tree = root;
  for (std::size_t i = 0; i < variation.axes.size(); ++i) {
    const Axis& axis = variation.axes[i];
    const std::vector<TreeNode>& values = axis.values[point[i]];
    for (std::size_t k = 0; k < axis.keys.size(); ++k) {
      set_at_path(tree, axis.keys[k].path, values[k].where, values[k]);
    }
  }
  return tree;
}

std::string name_at(const Variation& variation, const Point& point) {
  std::string name;
  for (std::size_t i = 0; i < variation.axes.size(); ++i) {
    const Axis& axis = variation.axes[i];
    for (std::size_t k = 0; k < axis.keys.size(); ++k) {
      name += fmt::format("{}{}={}", name.empty() ? "" : ",", axis.keys[k].label,
                          compact_text(axis.values[point[i]][k]));
    }
  }
  return name;
}

}  // namespace lockstep::harness
