// SPDX-License-Identifier: Apache-2.0
// [vary]: axes of a scenario, and the trees that its combinations stand for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/scenario/points.h"
#include "harness/scenario/tree.h"

namespace lockstep::harness {

/// Keys that change together, and the values they take together.
struct Axis {
  struct Key {
    std::string path;
    std::string label;  ///< shortest end of the path that no other key shares
    TextPosition where;
  };
  std::vector<Key> keys;
  std::vector<std::vector<TreeNode>> values;  ///< [value][key]
};

struct Variation {
  enum class Choice { kProduct, kPairwise, kSample };
  std::vector<Axis> axes;
  Choice choice = Choice::kProduct;
  std::int64_t sample_size = 0;
};

/// Reads [vary] of `root`: axes in file order, their values already tried on the tree, so that
/// every path leads to a place. Wrong forms become findings; then what is returned is of no use.
Variation read_variation(const TreeNode& root, Findings& findings);

/// The combinations to run, at least one, each a case of `values_per_case` values. Too many cases,
/// or too many values in all of them, are a finding at [vary], and then there is none.
std::vector<Point> choose_points(const Variation& variation, const TreeNode& root,
                                 std::uint64_t seed, std::int64_t values_per_case,
                                 Findings& findings);

/// `root` with every key of every axis set, positions being those of the values.
TreeNode tree_at(const TreeNode& root, const Variation& variation, const Point& point);

/// "ranks=2,bucket_cap_bytes=64"; empty without axes.
std::string name_at(const Variation& variation, const Point& point);

}  // namespace lockstep::harness
