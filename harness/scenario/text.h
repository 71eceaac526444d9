// SPDX-License-Identifier: Apache-2.0
// Values of a case as TOML text.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/schema.h"

namespace lockstep::harness {

/// "text" with everything escaped that must be.
std::string quoted(const std::string& text);

/// The key as it stands, or quoted where TOML asks for that.
std::string key_text(const std::string& key);

/// key = value, in that many columns at most where the value is an array that can be broken.
std::string key_value_line(const std::string& key, const std::string& value,
                           const std::vector<std::string>& items);

inline constexpr std::size_t kColumns = 100;

/// `items` in brackets on one line.
std::string array_text(const std::vector<std::string>& items);

std::string value_text(bool value);
std::string value_text(std::int64_t value);
std::string value_text(std::uint64_t value);
std::string value_text(double value);
std::string value_text(const std::string& value);

template <class T>
std::string value_text(const std::optional<T>& value) {
  return value ? value_text(*value) : std::string();
}

template <class T>
std::vector<std::string> item_texts(const std::vector<T>& values);

template <class T>
std::string value_text(const std::vector<T>& values) {
  return array_text(item_texts(values));
}

template <class T>
std::vector<std::string> item_texts(const std::vector<T>& values) {
  std::vector<std::string> items;
  for (const T& value : values) items.push_back(value_text(value));
  return items;
}

/// Stages: a stage of one block is written without brackets.
std::vector<std::string> stage_texts(const std::vector<std::vector<std::string>>& stages);

/// name = "text" pairs of an ordered table.
std::vector<std::string> pair_texts(const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace lockstep::harness
