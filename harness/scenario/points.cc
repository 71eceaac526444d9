// SPDX-License-Identifier: Apache-2.0
// Product, sample and pairwise choice of combinations.
#include "harness/scenario/points.h"

#include <algorithm>
#include <set>

#include "core/check.h"
#include "core/rng.h"

namespace lockstep::harness {

namespace {

/// The point with this number in product order.
Point point_at(std::int64_t number, const std::vector<std::size_t>& sizes) {
  Point point(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const auto size = static_cast<std::int64_t>(sizes[i]);
    point[i] = static_cast<std::size_t>(number % size);
    number /= size;
  }
  return point;
}

// The pairs that no chosen point contains yet. Values of all axes are numbered through, and a pair
// is a bit in a square matrix of those numbers, kept on both sides of the diagonal.
class UncoveredPairs {
 public:
  explicit UncoveredPairs(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) {
      first_.push_back(width_);
      width_ += size;
    }
    open_.assign(width_ * width_, false);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::size_t j = i + 1; j < sizes.size(); ++j) {
        for (std::size_t a = 0; a < sizes[i]; ++a) {
          for (std::size_t b = 0; b < sizes[j]; ++b) set(i, a, j, b, true);
        }
      }
    }
  }

  std::size_t num_values() const { return width_; }

  bool is_open(std::size_t i, std::size_t a, std::size_t j, std::size_t b) const {
    return open_[(first_[i] + a) * width_ + first_[j] + b];
  }

  void cover(const Point& point) {
    for (std::size_t i = 0; i < point.size(); ++i) {
      for (std::size_t j = i + 1; j < point.size(); ++j) set(i, point[i], j, point[j], false);
    }
  }

 private:
  void set(std::size_t i, std::size_t a, std::size_t j, std::size_t b, bool open) {
    open_[(first_[i] + a) * width_ + first_[j] + b] = open;
    open_[(first_[j] + b) * width_ + first_[i] + a] = open;
  }

  std::vector<std::size_t> first_;
  std::size_t width_ = 0;
  std::vector<bool> open_;
};

/// A point through one given pair; every further axis takes the value that closes most open pairs
/// with what is fixed already, the first of equals.
Point grow_point(const std::vector<std::size_t>& sizes, const UncoveredPairs& pairs, std::size_t i,
                 std::size_t a, std::size_t j, std::size_t b) {
  Point point(sizes.size(), 0);
  point[i] = a;
  point[j] = b;
  std::vector<std::size_t> fixed = {i, j};
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    if (axis == i || axis == j) continue;
    std::size_t best_closed = 0;
    for (std::size_t value = 0; value < sizes[axis]; ++value) {
      std::size_t closed = 0;
      for (const std::size_t other : fixed) {
        if (pairs.is_open(axis, value, other, point[other])) ++closed;
      }
      if (closed > best_closed) {
        best_closed = closed;
        point[axis] = value;
      }
    }
    fixed.push_back(axis);
  }
  return point;
}

}  // namespace

std::optional<std::int64_t> product_size(const std::vector<std::size_t>& sizes) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 62;
  std::int64_t product = 1;
  for (const std::size_t size : sizes) {
    if (size == 0) return 0;
    if (product >= kLimit / static_cast<std::int64_t>(size)) return std::nullopt;
    product *= static_cast<std::int64_t>(size);
  }
  return product;
}

std::vector<Point> product_points(const std::vector<std::size_t>& sizes) {
  const auto size = product_size(sizes);
  LOCKSTEP_CHECK(size && *size <= kMaxCases, "too many combinations");
  std::vector<Point> points;
  for (std::int64_t number = 0; number < *size; ++number) points.push_back(point_at(number, sizes));
  return points;
}

// Floyd's choice: for each of the last `count` numbers, draw one from 0 up to it, and take the
// number itself where the drawn one was taken before. Every subset is equally likely.
std::vector<Point> sampled_points(const std::vector<std::size_t>& sizes, std::int64_t count,
                                  std::uint64_t seed) {
  const auto size = product_size(sizes);
  LOCKSTEP_CHECK(size.has_value(), "the product of the axes is too large to sample");
  CounterRng rng(seed, RngStream::kVary);
  std::set<std::int64_t> numbers;
  for (std::int64_t last = *size - std::min(count, *size); last < *size; ++last) {
    const auto drawn = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(last) + 1));
    if (!numbers.insert(drawn).second) numbers.insert(last);
  }
  std::vector<Point> points;
  for (const std::int64_t number : numbers) points.push_back(point_at(number, sizes));
  return points;
}

std::optional<std::vector<Point>> pairwise_points(const std::vector<std::size_t>& sizes) {
  if (sizes.size() < 2) return product_points(sizes);
  UncoveredPairs pairs(sizes);
  LOCKSTEP_CHECK(pairs.num_values() <= kMaxPairwiseValues, "too many values to pair");
  std::set<Point> points;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t j = i + 1; j < sizes.size(); ++j) {
      for (std::size_t a = 0; a < sizes[i]; ++a) {
        for (std::size_t b = 0; b < sizes[j]; ++b) {
          if (!pairs.is_open(i, a, j, b)) continue;
          const Point point = grow_point(sizes, pairs, i, a, j, b);
          pairs.cover(point);
          points.insert(point);
          if (static_cast<std::int64_t>(points.size()) > kMaxCases) return std::nullopt;
        }
      }
    }
  }
  return std::vector<Point>(points.begin(), points.end());
}

}  // namespace lockstep::harness
