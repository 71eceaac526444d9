// SPDX-License-Identifier: Apache-2.0
// Schedules as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <sstream>

#include "core/check.h"
#include "sim/scheduler.h"

namespace lockstep::sim {
namespace {

constexpr std::int64_t kRankMax = 1023;

// The whole of `text` as a number from 0, or -1.
std::int64_t number(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

}  // namespace

std::string to_string(const Schedule& schedule) {
  std::string text;
  for (const Deviation& deviation : schedule) {
    text += fmt::format("{}{}:{}{}", text.empty() ? "" : " ", deviation.index,
                        is_completion(deviation.actor) ? "c" : "", rank_of(deviation.actor));
  }
  return text;
}

Schedule parse_schedule(const std::string& text) {
  Schedule schedule;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t colon = word.find(':');
    LOCKSTEP_USAGE(colon != std::string::npos && colon + 1 < word.size(),
                   "'{}' is not part of a schedule; expected DECISION:RANK or DECISION:cRANK, such "
                   "as 12:1 or 15:c0",
                   word);
    const bool completion = word[colon + 1] == 'c';
    const std::string_view view = word;
    const std::int64_t index = number(view.substr(0, colon));
    const std::int64_t rank = number(view.substr(colon + (completion ? 2 : 1)));
    LOCKSTEP_USAGE(index >= 0 && rank >= 0 && rank <= kRankMax,
                   "'{}' is not part of a schedule; expected DECISION:RANK or DECISION:cRANK, such "
                   "as 12:1 or 15:c0",
                   word);
    LOCKSTEP_USAGE(schedule.empty() || index > schedule.back().index,
                   "'{}' is out of order: decisions of a schedule ascend", word);
    schedule.push_back({index, completion ? completion_at(rank) : rank});
  }
  return schedule;
}

}  // namespace lockstep::sim
