// SPDX-License-Identifier: Apache-2.0
// TOML syntax for single values.
#include "harness/scenario/text.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/check.h"
#include "harness/scenario/tree.h"

namespace lockstep::harness {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (code < 0x20 || code == 0x7f) {
      out += fmt::format("\\u{:04X}", code);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string key_text(const std::string& key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  return bare ? key : quoted(key);
}

std::string array_text(const std::vector<std::string>& items) {
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string key_value_line(const std::string& key, const std::string& value,
                           const std::vector<std::string>& items) {
  std::string line = fmt::format("{} = {}\n", key, value);
  if (line.size() <= kColumns + 1 || items.size() < 2) return line;
  std::string lines = key + " = [";
  std::size_t column = kColumns;
  for (const std::string& item : items) {
    if (column + item.size() + 2 > kColumns) {
      lines += "\n ";
      column = 1;
    }
    lines += " " + item + ",";
    column += item.size() + 2;
  }
  return lines + "\n]\n";
}

std::string value_text(bool value) { return value ? "true" : "false"; }

std::string value_text(std::int64_t value) { return fmt::format("{}", value); }

std::string value_text(std::uint64_t value) {
  LOCKSTEP_CHECK(value <= static_cast<std::uint64_t>(kInt64Max), "{} is no TOML integer", value);
  return fmt::format("{}", value);
}

std::string value_text(double value) { return real_text(value); }

std::string value_text(const std::string& value) { return quoted(value); }

std::vector<std::string> stage_texts(const std::vector<std::vector<std::string>>& stages) {
  std::vector<std::string> items;
  for (const std::vector<std::string>& stage : stages) {
    items.push_back(stage.size() == 1 ? quoted(stage.front()) : value_text(stage));
  }
  return items;
}

std::vector<std::string> pair_texts(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<std::string> items;
  for (const auto& [key, text] : pairs) {
    items.push_back(fmt::format("{} = {}", key_text(key), quoted(text)));
  }
  return items;
}

}  // namespace lockstep::harness
