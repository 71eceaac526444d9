// SPDX-License-Identifier: Apache-2.0
// Which combinations of axis values become cases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::harness {

/// Cases that one file may expand to.
inline constexpr std::int64_t kMaxCases = 20'000;

/// Values in all cases of one file together.
inline constexpr std::int64_t kMaxValuesOfCases = 4'000'000;

/// One index per axis.
using Point = std::vector<std::size_t>;

/// Number of combinations of axes with so many values each; none if that is 2^62 or more.
std::optional<std::int64_t> product_size(const std::vector<std::size_t>& sizes);

/// All combinations, the last axis turning fastest. Precondition: product_size is at most
/// kMaxCases.
std::vector<Point> product_points(const std::vector<std::size_t>& sizes);

/// `count` different combinations, in product order; all of them if there are no more.
/// Determinism: depends on the arguments alone. Precondition: product_size is defined.
std::vector<Point> sampled_points(const std::vector<std::size_t>& sizes, std::int64_t count,
                                  std::uint64_t seed);

/// Values of all axes together that pairwise_points is willing to pair.
inline constexpr std::size_t kMaxPairwiseValues = 1'000;

/// Few combinations that contain every pair of values of different axes, in product order. None if
/// more than kMaxCases are needed.
/// Determinism: depends on the arguments alone. Precondition: the sum of `sizes` is at most
/// kMaxPairwiseValues.
std::optional<std::vector<Point>> pairwise_points(const std::vector<std::size_t>& sizes);

}  // namespace lockstep::harness
