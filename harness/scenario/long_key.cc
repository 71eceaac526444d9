// SPDX-License-Identifier: Apache-2.0
// Passes over strings and comments, and counts points between what can end a key.
#include "harness/scenario/long_key.h"

#include <algorithm>
#include <string>

namespace lockstep::harness {

namespace {

/// Behind the string that begins at `at`, or behind its line where it does not end there.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const bool is_long = text.substr(at, 3) == std::string(3, quote);
  const std::string end(is_long ? 3 : 1, quote);
  at += end.size();
  while (at < text.size() && text.substr(at, end.size()) != end) {
    if (!is_long && text[at] == '\n') return at;
    at += quote == '"' && text[at] == '\\' ? 2 : 1;
  }
  at = std::min(at + end.size(), text.size());
  // Up to two quotes may stand before the three that end a string.
  while (is_long && at < text.size() && text[at] == quote) ++at;
  return at;
}

TextPosition position_of(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const std::size_t line_begin = before.rfind('\n') + 1;
  return {1 + std::count(before.begin(), before.end(), '\n'),
          1 + static_cast<std::int64_t>(at - line_begin)};
}

}  // namespace

std::optional<TextPosition> find_long_key(std::string_view text) {
  constexpr std::string_view kEndsKey = "=,[]{}\n";
  std::int64_t points = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (c == '"' || c == '\'') {
      at = end_of_string(text, at);
    } else {
      if (kEndsKey.find(c) != std::string_view::npos) points = 0;
      if (c == '.' && ++points > kMaxKeyPoints) return position_of(text, at);
      ++at;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::harness
