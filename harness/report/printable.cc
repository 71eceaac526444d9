// SPDX-License-Identifier: Apache-2.0
// Text from anywhere, made safe for terminals, XML and shells.
#include "harness/report/printable.h"

#include <fmt/format.h>

#include <cstring>

namespace lockstep::harness {

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// One code point at the start of `text`; num_bytes is 0 where `text` starts with no valid UTF-8.
struct CodePoint {
  std::uint32_t value = 0;
  std::size_t num_bytes = 0;
};

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  CodePoint point;
  if ((lead & 0xE0) == 0xC0) {
    point = {static_cast<std::uint32_t>(lead & 0x1F), 2};
  } else if ((lead & 0xF0) == 0xE0) {
    point = {static_cast<std::uint32_t>(lead & 0x0F), 3};
  } else if ((lead & 0xF8) == 0xF0) {
    point = {static_cast<std::uint32_t>(lead & 0x07), 4};
  } else {
    return {};
  }
  if (text.size() < point.num_bytes) return {};
  for (std::size_t i = 1; i < point.num_bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    point.value = (point.value << 6) | static_cast<std::uint32_t>(byte(i) & 0x3F);
  }
  // Every code point has one spelling, the shortest; surrogates are none.
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point.value >= 0xD800 && point.value <= 0xDFFF;
  if (point.value < kSmallest[point.num_bytes] || point.value > 0x10FFFF || surrogate) return {};
  return point;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    if (point.num_bytes == 0) {
      out += kReplacement;
      text.remove_prefix(1);
      continue;
    }
    const bool blank = point.value == '\n' || point.value == '\t';
    const bool control = point.value < 0x20 || (point.value >= 0x7F && point.value < 0xA0);
    if (control && !blank) {
      out += fmt::format("\\x{:02x}", point.value);
    } else if (point.value == 0xFFFE || point.value == 0xFFFF) {
      out += kReplacement;
    } else {
      out += text.substr(0, point.num_bytes);
    }
    text.remove_prefix(point.num_bytes);
  }
  return out;
}

std::string indented(std::string_view text, std::string_view indent) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::string out;
  for (const char c : printable(text)) {
    out += c;
    if (c == '\n') out += indent;
  }
  return out;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(text);
  }
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string rank_list(const std::vector<std::int64_t>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) out += ", ";
    // Two neighbours read better as "0, 1".
    if (last == i + 1) last = i;
    out += std::to_string(ranks[i]);
    if (last > i) out += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return out;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return fmt::format("signal {}", signal);
  return fmt::format("SIG{} (signal {})", name, signal);
}

}  // namespace lockstep::harness
