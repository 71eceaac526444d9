// SPDX-License-Identifier: Apache-2.0
// The one user of toml++; everything after this works on the tree.
#include "harness/scenario/tree.h"

#include <fmt/format.h>

// Every level is a call of the parser, of `convert` and of several destructors.
#define TOML_MAX_NESTED_VALUES 64
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>

#include "harness/scenario/long_key.h"
#include "harness/scenario/text.h"

namespace lockstep::harness {

namespace {

TextPosition position(const toml::source_position& at) {
  return {std::max<std::int64_t>(1, static_cast<std::int64_t>(at.line)),
          std::max<std::int64_t>(1, static_cast<std::int64_t>(at.column))};
}

bool before(TextPosition a, TextPosition b) {
  return std::tie(a.line, a.column) < std::tie(b.line, b.column);
}

TreeNode convert(const toml::node& from) {
  TreeNode node;
  node.where = position(from.source().begin);
  if (const auto* table = from.as_table()) {
    node.kind = TreeNode::Kind::kTable;
    for (auto&& [key, value] : *table) {
      node.entries.push_back(
          {std::string(key.str()), position(key.source().begin), convert(value)});
    }
    // toml++ sorts keys; where a key stands in the file tells its place.
    std::stable_sort(
        node.entries.begin(), node.entries.end(),
        [](const TreeEntry& a, const TreeEntry& b) { return before(a.key_where, b.key_where); });
  } else if (const auto* array = from.as_array()) {
    node.kind = TreeNode::Kind::kArray;
    for (auto&& item : *array) node.items.push_back(convert(item));
  } else if (const auto* text = from.as_string()) {
    node.kind = TreeNode::Kind::kString;
    node.text = text->get();
  } else if (const auto* integer = from.as_integer()) {
    node.kind = TreeNode::Kind::kInteger;
    node.integer = integer->get();
  } else if (const auto* real = from.as_floating_point()) {
    node.kind = TreeNode::Kind::kFloat;
    node.real = real->get();
  } else if (const auto* boolean = from.as_boolean()) {
    node.kind = TreeNode::Kind::kBoolean;
    node.boolean = boolean->get();
  } else {
    node.kind = TreeNode::Kind::kDate;
  }
  return node;
}

/// The entry for `key`, or for its plural.
const TreeEntry* find_or_plural(const TreeNode& table, const std::string& key) {
  const TreeEntry* entry = table.find(key);
  return entry ? entry : table.find(key + "s");
}

/// An index below `limit`, or -1.
std::int64_t index_of(const std::string& text, std::size_t limit) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && index < limit ? static_cast<std::int64_t>(index) : -1;
}

/// Not empty, and nothing that would break a line.
bool is_plain(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
}

/// In quotes, and cut where it is too long for a message.
std::string shortened(const std::string& text) {
  constexpr std::size_t kMaxBytes = 60;
  if (text.size() <= kMaxBytes) return quoted(text);
  std::size_t end = kMaxBytes;
  // Never within a UTF-8 sequence: its further bytes are 10xxxxxx.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return quoted(text.substr(0, end)) + "...";
}

}  // namespace

const TreeEntry* TreeNode::find(std::string_view key) const {
  for (const TreeEntry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

TreeEntry* TreeNode::find(std::string_view key) {
  return const_cast<TreeEntry*>(std::as_const(*this).find(key));
}

std::string kind_name(TreeNode::Kind kind) {
  switch (kind) {
    case TreeNode::Kind::kBoolean:
      return "a boolean";
    case TreeNode::Kind::kInteger:
      return "an integer";
    case TreeNode::Kind::kFloat:
      return "a number";
    case TreeNode::Kind::kString:
      return "a string";
    case TreeNode::Kind::kArray:
      return "an array";
    case TreeNode::Kind::kTable:
      return "a table";
    case TreeNode::Kind::kDate:
      break;
  }
  return "a date or time";
}

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string compact_text(const TreeNode& node) {
  std::string text;
  switch (node.kind) {
    case TreeNode::Kind::kBoolean:
      return node.boolean ? "true" : "false";
    case TreeNode::Kind::kInteger:
      return fmt::format("{}", node.integer);
    case TreeNode::Kind::kFloat:
      return real_text(node.real);
    case TreeNode::Kind::kString:
      return is_plain(node.text) ? node.text : quoted(node.text);
    case TreeNode::Kind::kArray:
      for (const TreeNode& item : node.items)
        text += (text.empty() ? "" : ",") + compact_text(item);
      return "[" + text + "]";
    case TreeNode::Kind::kTable:
      for (const TreeEntry& entry : node.entries) {
        text += (text.empty() ? "" : ",") + entry.key + "=" + compact_text(entry.value);
      }
      return "{" + text + "}";
    case TreeNode::Kind::kDate:
      break;
  }
  return "date";
}

std::string describe_value(const TreeNode& node) {
  switch (node.kind) {
    case TreeNode::Kind::kArray:
    case TreeNode::Kind::kTable:
    case TreeNode::Kind::kDate:
      return kind_name(node.kind);
    case TreeNode::Kind::kString:
      return "the string " + shortened(node.text);
    case TreeNode::Kind::kBoolean:
      return "the boolean " + compact_text(node);
    default:
      return compact_text(node);
  }
}

void Findings::add(TextPosition where, std::string message) {
  list_.push_back({file_, where.line, where.column, std::move(message)});
}

bool Findings::is_spoiled(const std::string& path) const {
  return std::any_of(spoiled_.begin(), spoiled_.end(), [&](const std::string& spoiled) {
    return leads_to(spoiled, path) || leads_to(path, spoiled);
  });
}

std::int64_t num_values(const TreeNode& node) {
  std::int64_t sum = 1;
  for (const TreeNode& item : node.items) sum += num_values(item);
  for (const TreeEntry& entry : node.entries) sum += num_values(entry.value);
  return sum;
}

bool leads_to(const std::string& outer, const std::string& path) {
  return (path + ".").rfind(outer + ".", 0) == 0;
}

std::vector<Finding> Findings::take() {
  std::stable_sort(list_.begin(), list_.end(), [&](const Finding& a, const Finding& b) {
    return std::tie(a.line, a.column) < std::tie(b.line, b.column);
  });
  std::vector<Finding> unique;
  std::size_t first_here = 0;
  for (Finding& finding : list_) {
    const bool is_elsewhere = unique.empty() || unique.back().line != finding.line ||
                              unique.back().column != finding.column;
    if (is_elsewhere) first_here = unique.size();
    const auto begin = unique.begin() + static_cast<std::ptrdiff_t>(first_here);
    const bool seen = std::any_of(begin, unique.end(),
                                  [&](const Finding& f) { return f.message == finding.message; });
    if (!seen) unique.push_back(std::move(finding));
  }
  list_.clear();
  return unique;
}

bool parse_tree(std::string_view text, TreeNode& root, Findings& findings) {
  if (const auto where = find_long_key(text)) {
    findings.add(*where,
                 fmt::format("a key of more than {} points; expected the dotted path of a key of "
                             "this file, such as world.ranks",
                             kMaxKeyPoints));
    return false;
  }
  try {
    root = convert(toml::parse(text, findings.file()));
    return true;
  } catch (const toml::parse_error& error) {
    std::string message(error.description());
    findings.add(position(error.source().begin), "not valid TOML: " + message);
    return false;
  }
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Located locate(const TreeNode& root, const std::string& path) {
  Located found{true, root.where};
  const TreeNode* node = &root;
  for (const std::string& part : split_path(path)) {
    const TreeNode* next = nullptr;
    if (node->kind == TreeNode::Kind::kArray && node->items.size() == 1 && index_of(part, 1) < 0) {
      node = &node->items.front();
    }
    if (node->kind == TreeNode::Kind::kTable) {
      if (const TreeEntry* entry = find_or_plural(*node, part)) {
        found.where = entry->key_where;
        next = &entry->value;
      } else if (index_of(part, 1) == 0) {
        next = node;
      }
    } else if (node->kind == TreeNode::Kind::kArray) {
      if (const std::int64_t index = index_of(part, node->items.size()); index >= 0) {
        next = &node->items[static_cast<std::size_t>(index)];
        found.where = next->where;
      }
    }
    if (!next) {
      found.complete = false;
      return found;
    }
    node = next;
  }
  return found;
}

std::string set_at_path(TreeNode& root, const std::string& path, TextPosition key_where,
                        const TreeNode& value) {
  TreeNode* node = &root;
  const std::vector<std::string> parts = split_path(path);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    if (parts[i].empty()) return "a component of the path is empty";
    if (node->kind == TreeNode::Kind::kArray) {
      const std::int64_t index = index_of(parts[i], node->items.size());
      if (index < 0) {
        return fmt::format("'{}' is no index into an array of {}", parts[i], node->items.size());
      }
      node = &node->items[static_cast<std::size_t>(index)];
    } else if (node->kind == TreeNode::Kind::kTable) {
      TreeEntry* entry = node->find(parts[i]);
      if (!entry && index_of(parts[i], std::string::npos) >= 0) {
        return fmt::format("the file has no element '{}' there", parts[i]);
      }
      if (!entry) {
        TreeNode table;
        table.where = key_where;
        node->entries.push_back({parts[i], key_where, std::move(table)});
        entry = &node->entries.back();
      }
      if (last) entry->key_where = key_where;
      node = &entry->value;
    } else {
      return fmt::format("'{}' is inside {}, which has no keys", parts[i], kind_name(node->kind));
    }
  }
  *node = value;
  return {};
}

}  // namespace lockstep::harness
