// SPDX-License-Identifier: Apache-2.0
// Which values a key may have, beyond the type of its member.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lockstep::harness {

inline constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

/// Any value of the type.
struct Any {};

struct IntRange {
  std::int64_t min, max;
};

/// Finite numbers. `above_min`: the minimum itself is left out.
struct RealRange {
  double min, max;
  bool above_min = false;
};

/// Text with at least one character.
struct Text {};

/// "major.minor" of LibTorch.
struct Version {};

/// One of these names; the unused rest is null.
struct Choices {
  std::array<const char*, 48> names;
};

/// A list whose items obey `item`.
template <class C>
struct ListOf {
  C item;
  std::int64_t min_items = 0;
  std::int64_t max_items = 1'000'000;
  bool unique = false;
};

/// A table of texts that keeps its order.
struct OrderedTexts {};

/// A list of names and lists of names; a name is a list of one.
struct Stages {};

enum class TablesPlace {
  kSections,  ///< printed as [[key]]
  kInline,    ///< printed as key = [{ ... }]
};

/// The names without the unused rest.
inline std::vector<std::string> names_of(const Choices& choices) {
  std::vector<std::string> names;
  for (const char* name : choices.names) {
    if (name != nullptr) names.emplace_back(name);
  }
  return names;
}

}  // namespace lockstep::harness
