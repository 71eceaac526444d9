// SPDX-License-Identifier: Apache-2.0
// Which pairs of options were tried together, and how often.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/fuzz/draw/space.h"
#include "harness/fuzz/pairs/options.h"

namespace lockstep::harness::fuzz {

/// Whether both values of a pair can be in one case.
enum class Cell : std::uint8_t {
  kTried,
  kEmpty,     ///< never tried, though there are such cases
  kExcluded,  ///< no such case was found, by putting both values into cases that have one of them
};

/// One pair of values of two options.
struct Pair {
  std::string first, second;  ///< "dtype=float64"
  std::int64_t count = 0;
  Cell cell = Cell::kTried;
};

class PairTable {
 public:
  /// `both_modes` false: only cases of `space.mode` are drawn. `list` outlives the table.
  PairTable(const Space& space, bool both_modes, const std::vector<Option>& list = options());

  /// Counts one case.
  void add(const Case& value);

  /// All pairs in the order of the options. Excluded are pairs that contradict the rules of
  /// scenarios (check_case), have no prediction (predict), or lie outside of the space; those are
  /// looked for anew in each call, which takes seconds where much is empty.
  std::vector<Pair> pairs() const;

 private:
  /// A value with the place of its option.
  struct Value {
    std::size_t option = 0;
    const OptionValue* value = nullptr;
    std::string name;
  };

  bool is_possible(std::size_t first, std::size_t second) const;
  bool is_drawn(Case& value) const;

  const Space space_;
  const bool both_modes_;
  std::vector<Value> values_;
  std::vector<std::vector<std::int64_t>> counts_;  ///< by two values, the lower one first
  std::vector<std::vector<std::shared_ptr<const Case>>> examples_;  ///< by value, the first few
};

/// The share of pairs that were tried, the least tried and the empty ones, some lines.
std::string describe_pairs(const std::vector<Pair>& pairs);

/// first,second,count,cell: one line each.
std::string pairs_as_csv(const std::vector<Pair>& pairs);

std::int64_t count_of(const std::vector<Pair>& pairs, Cell cell);

}  // namespace lockstep::harness::fuzz
