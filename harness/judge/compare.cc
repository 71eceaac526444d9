// SPDX-License-Identifier: Apache-2.0
// Comparison of snapshots down to the first differing element.
#include "harness/judge/compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "harness/snapshot.h"

namespace lockstep::harness {
namespace {

// Maps a float's bits to integers in the order of the numbers, with both zeros at 0.
template <typename Float, typename Int>
std::int64_t ulp_distance_of(Float a, Float b) {
  if (std::isnan(a) || std::isnan(b)) {
    return std::isnan(a) && std::isnan(b) ? 0 : -1;
  }
  const auto ordered = [](Float x) {
    Int bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits >= 0 ? bits : static_cast<Int>(std::numeric_limits<Int>::min() - bits);
  };
  // Unsigned subtraction cannot overflow: the distance of two finite numbers fits.
  const auto ia = static_cast<std::uint64_t>(static_cast<std::int64_t>(ordered(a)));
  const auto ib = static_cast<std::uint64_t>(static_cast<std::int64_t>(ordered(b)));
  const bool a_is_larger = static_cast<std::int64_t>(ia) > static_cast<std::int64_t>(ib);
  const std::uint64_t distance = a_is_larger ? ia - ib : ib - ia;
  const auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(distance, largest));
}

template <typename T>
T element_at(const Snapshot& snapshot, const TensorSlot& slot, std::int64_t element) {
  T value;
  std::memcpy(&value, snapshot.bytes.data() + slot.offset_bytes + element * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
std::string bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return fmt::format("0x{:0{}x}", bits, sizeof(T) * 2);
}

template <typename T>
std::string digits_of(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return fmt::format("{:.{}g}", value, std::numeric_limits<T>::max_digits10);
  } else {
    return fmt::format("{}", value);
  }
}

template <typename T>
bool differs(T expected, T actual, Equality equality) {
  if constexpr (std::is_floating_point_v<T>) {
    if (equality != Equality::kBits) {
      return ulp_distance(expected, actual) != 0;
    }
  }
  return std::memcmp(&expected, &actual, sizeof(T)) != 0;
}

template <typename T>
std::optional<Divergence> compare_elements(const Snapshot& expected, const TensorSlot& a,
                                           const Snapshot& actual, const TensorSlot& b,
                                           Equality equality) {
  Divergence found;
  const auto numel = a.num_bytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < numel; ++i) {
    const T x = element_at<T>(expected, a, i);
    const T y = element_at<T>(actual, b, i);
    if (!differs(x, y, equality)) {
      continue;
    }
    if (found.num_elements_differ++ == 0) {
      found.tensor = a.name;
      found.element = i;
      found.expected = digits_of(x);
      found.actual = digits_of(y);
      found.expected_bits = bits_of(x);
      found.actual_bits = bits_of(y);
      if constexpr (std::is_floating_point_v<T>) {
        found.ulp = ulp_distance(x, y);
      }
    }
  }
  if (found.num_elements_differ == 0) {
    return std::nullopt;
  }
  return found;
}

std::string shape_text(const TensorSlot& slot) {
  return slot.defined ? fmt::format("{}[{}]{}", slot.dtype, fmt::join(slot.sizes, ", "),
                                    slot.sparse ? " sparse" : "")
                      : std::string("undefined");
}

// Of a floating-point tensor: every element is +0 or -0.
bool all_zero(const Snapshot& snapshot, const TensorSlot& slot) {
  const bool wide = real_bytes(slot) == 8;
  const std::int64_t numel = slot.num_bytes / (wide ? 8 : 4);
  for (std::int64_t i = 0; i < numel; ++i) {
    if (wide ? element_at<double>(snapshot, slot, i) != 0.0
             : element_at<float>(snapshot, slot, i) != 0.0F) {
      return false;
    }
  }
  return true;
}

std::optional<Divergence> compare_slot(const Snapshot& expected, const TensorSlot& a,
                                       const Snapshot& actual, const TensorSlot& b,
                                       Equality equality) {
  if (a.defined != b.defined && a.name == b.name && equality == Equality::kValuesOrUndefined &&
      (a.defined ? all_zero(expected, a) : all_zero(actual, b))) {
    return std::nullopt;
  }
  if (a.defined != b.defined || a.dtype != b.dtype || a.sizes != b.sizes || a.name != b.name ||
      a.sparse != b.sparse) {
    Divergence found;
    found.tensor = a.name;
    found.expected = shape_text(a);
    found.actual = shape_text(b);
    found.num_elements_differ = -1;
    return found;
  }
  if (std::memcmp(expected.bytes.data() + a.offset_bytes, actual.bytes.data() + b.offset_bytes,
                  static_cast<std::size_t>(a.num_bytes)) == 0) {
    return std::nullopt;
  }
  if (real_bytes(a) == 4) {
    return compare_elements<float>(expected, a, actual, b, equality);
  }
  if (real_bytes(a) == 8) {
    return compare_elements<double>(expected, a, actual, b, equality);
  }
  if (a.dtype == "Long") {
    return compare_elements<std::int64_t>(expected, a, actual, b, equality);
  }
  return compare_elements<std::uint8_t>(expected, a, actual, b, equality);
}

}  // namespace

std::int64_t ulp_distance(float a, float b) { return ulp_distance_of<float, std::int32_t>(a, b); }

std::int64_t ulp_distance(double a, double b) {
  return ulp_distance_of<double, std::int64_t>(a, b);
}

std::optional<Divergence> first_difference(const Snapshot& expected, const Snapshot& actual,
                                           Equality equality) {
  if (expected.slots == nullptr || actual.slots == nullptr || same_bits(expected, actual)) {
    return std::nullopt;
  }
  if (expected.slots->size() != actual.slots->size()) {
    Divergence found;
    found.expected = fmt::format("{} tensors", expected.slots->size());
    found.actual = fmt::format("{} tensors", actual.slots->size());
    return found;
  }
  for (std::size_t i = 0; i < expected.slots->size(); ++i) {
    auto found = compare_slot(expected, (*expected.slots)[i], actual, (*actual.slots)[i], equality);
    if (found) {
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::harness
