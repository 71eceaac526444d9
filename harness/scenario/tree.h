// SPDX-License-Identifier: Apache-2.0
// TOML text as a plain tree with positions, tables in the order of the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/scenario.h"

namespace lockstep::harness {

/// Line and column from 1, columns in characters.
struct TextPosition {
  std::int64_t line = 1;
  std::int64_t column = 1;
};

struct TreeEntry;

/// One TOML value. Only the member that `kind` names is used.
struct TreeNode {
  enum class Kind { kBoolean, kInteger, kFloat, kString, kArray, kTable, kDate };
  Kind kind = Kind::kTable;
  TextPosition where;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0.0;
  std::string text;
  std::vector<TreeNode> items;     ///< kArray
  std::vector<TreeEntry> entries;  ///< kTable

  /// The entry of a table, or null. The pointer lives until the table changes.
  const TreeEntry* find(std::string_view key) const;
  TreeEntry* find(std::string_view key);
};

struct TreeEntry {
  std::string key;
  TextPosition key_where;
  TreeNode value;
};

/// "an integer", "a table", ...
std::string kind_name(TreeNode::Kind kind);

/// The string "x", the boolean true, 3, an array: for messages.
std::string describe_value(const TreeNode& node);

/// A short text for names of cases: 3, 0.5, true, sgd, [8,16], {kind=sgd,lr=0.5}.
std::string compact_text(const TreeNode& node);

/// Shortest text that reads back as the same number, always with a point or an exponent.
std::string real_text(double value);

/// Collects the findings of one file.
class Findings {
 public:
  explicit Findings(std::string file) : file_(std::move(file)) {}

  void add(TextPosition where, std::string message);
  /// Notes that the value of the key at `path` is not what the file means it to be.
  void spoil(const std::string& path) { spoiled_.push_back(path); }
  /// True if the key at `path`, or one above or below it, was spoiled.
  bool is_spoiled(const std::string& path) const;
  bool empty() const { return list_.empty(); }
  std::size_t size() const { return list_.size(); }
  const std::string& file() const { return file_; }

  /// Sorted by position; findings that are equal in all fields appear once.
  std::vector<Finding> take();

 private:
  std::string file_;
  std::vector<Finding> list_;
  std::vector<std::string> spoiled_;
};

/// How many values there are in it, tables and arrays included; at least 1.
std::int64_t num_values(const TreeNode& node);

/// True if `outer` is `path` or a table or array above it.
bool leads_to(const std::string& outer, const std::string& path);

/// The root table of `text`. False, with one finding, if it is not TOML.
bool parse_tree(std::string_view text, TreeNode& root, Findings& findings);

/// Splits "model.blocks.vision" at its points.
std::vector<std::string> split_path(std::string_view path);

/// Where a dotted path is in the file: the key of the last component that exists, or the element
/// for an index into an array. Where a component is not found but its plural is ("rank", "ranks"),
/// the plural is taken. A table stands for an array of one table, and the other way round.
struct Located {
  bool complete = false;  ///< every component was found
  TextPosition where;
};
Located locate(const TreeNode& root, const std::string& path);

/// Puts `value` at a dotted path, replacing what is there and creating tables as needed.
/// Returns an empty text, or why it cannot be done.
std::string set_at_path(TreeNode& root, const std::string& path, TextPosition key_where,
                        const TreeNode& value);

}  // namespace lockstep::harness
