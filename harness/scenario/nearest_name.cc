// SPDX-License-Identifier: Apache-2.0
// Edit distance by rows.
#include "harness/scenario/nearest_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::harness {

// distance[i][j] between the first i characters of a and the first j of b is the least of
//   distance[i-1][j] + 1, distance[i][j-1] + 1, distance[i-1][j-1] + (a[i] != b[j]),
//   and distance[i-2][j-2] + 1 if the last two characters are each other's swapped.
// Three rows are enough.
std::int64_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::int64_t> two_ago(width), one_ago(width), now(width);
  for (std::size_t j = 0; j < width; ++j) now[j] = static_cast<std::int64_t>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    two_ago.swap(one_ago);
    one_ago.swap(now);
    now[0] = static_cast<std::int64_t>(i);
    for (std::size_t j = 1; j < width; ++j) {
      const std::int64_t replaced = one_ago[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({one_ago[j] + 1, now[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], two_ago[j - 2] + 1);
      }
    }
  }
  return now.back();
}

std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& known) {
  std::optional<std::string> nearest;
  std::int64_t best = 0;
  for (const std::string& candidate : known) {
    const std::int64_t distance = edit_distance(name, candidate);
    const auto longer = static_cast<std::int64_t>(std::max(name.size(), candidate.size()));
    if (distance > std::max<std::int64_t>(1, longer / 3)) continue;
    if (!nearest || distance < best) {
      nearest = candidate;
      best = distance;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const auto nearest = nearest_name(name, known);
  return nearest ? fmt::format("; did you mean '{}'?", *nearest) : std::string();
}

}  // namespace lockstep::harness
