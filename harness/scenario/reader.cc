// SPDX-License-Identifier: Apache-2.0
// Visitors of the schema that read values and gather the known keys.
#include "harness/scenario/reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/scenario.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/schema.h"

namespace lockstep::harness {

namespace {

// What a constraint expects of a value, in words. -------------------------------------------------

std::string expected(const Any&, const bool&) { return "true or false"; }
std::string expected(const Any&, const std::string&) { return "a string"; }
std::string expected(const Text&, const std::string&) { return "a string that is not empty"; }
std::string expected(const Version&, const std::string&) { return "a version such as \"2.4\""; }

template <class T>
std::string expected(const IntRange& range, const T&) {
  if (range.max == kInt64Max) return fmt::format("an integer, at least {}", range.min);
  return fmt::format("an integer from {} to {}", range.min, range.max);
}

std::string expected(const RealRange& range, const double&) {
  if (range.max >= 1e30) {
    return range.min < 0 ? "a finite number"
                         : fmt::format("a finite number, at least {}", range.min);
  }
  return fmt::format("a number from {} to {}", range.min, range.max);
}

std::vector<std::string> names_of(const Choices& choices) {
  std::vector<std::string> names;
  for (const char* name : choices.names) {
    if (name) names.emplace_back(name);
  }
  return names;
}

std::string expected(const Choices& choices, const std::string&) {
  return fmt::format("one of \"{}\"", fmt::join(names_of(choices), "\", \""));
}

template <class T, class C>
std::string expected(const ListOf<C>&, const std::vector<T>&) {
  return "an array";
}

/// A value with the place it was read from.
struct Source {
  const TreeNode& node;
  const std::string& path;
  Findings& findings;

  void reject(const std::string& what_was_expected, const std::string& hint = {}) const {
    findings.add(node.where, fmt::format("{} is {}; expected {}{}", path, describe_value(node),
                                         what_was_expected, hint));
    findings.spoil(path);
  }
};

// One overload per type of member. Each reports what it rejects and returns whether `out` was set.
// --

bool read(const Source& from, bool& out, const Any& constraint) {
  if (from.node.kind != TreeNode::Kind::kBoolean) {
    from.reject(expected(constraint, out));
    return false;
  }
  out = from.node.boolean;
  return true;
}

template <class Integer>
bool read_integer(const Source& from, Integer& out, const IntRange& range) {
  if (from.node.kind != TreeNode::Kind::kInteger || from.node.integer < range.min ||
      from.node.integer > range.max) {
    from.reject(expected(range, out));
    return false;
  }
  out = static_cast<Integer>(from.node.integer);
  return true;
}

bool read(const Source& from, std::int64_t& out, const IntRange& range) {
  return read_integer(from, out, range);
}

bool read(const Source& from, std::uint64_t& out, const IntRange& range) {
  return read_integer(from, out, range);
}

bool read(const Source& from, double& out, const RealRange& range) {
  const bool integer = from.node.kind == TreeNode::Kind::kInteger;
  const double value = integer ? static_cast<double>(from.node.integer) : from.node.real;
  if ((!integer && from.node.kind != TreeNode::Kind::kFloat) || !std::isfinite(value) ||
      value < range.min || value > range.max) {
    from.reject(expected(range, out));
    return false;
  }
  out = value;
  return true;
}

template <class Constraint>
bool read_text(const Source& from, std::string& out, const Constraint& constraint, bool allowed) {
  if (from.node.kind != TreeNode::Kind::kString || !allowed) {
    from.reject(expected(constraint, out));
    return false;
  }
  out = from.node.text;
  return true;
}

bool read(const Source& from, std::string& out, const Any& constraint) {
  return read_text(from, out, constraint, true);
}

bool read(const Source& from, std::string& out, const Text& constraint) {
  return read_text(from, out, constraint, !from.node.text.empty());
}

bool read(const Source& from, std::string& out, const Version& constraint) {
  return read_text(from, out, constraint, version_of(from.node.text).has_value());
}

bool read(const Source& from, std::string& out, const Choices& choices) {
  const std::vector<std::string> names = names_of(choices);
  const bool known = std::find(names.begin(), names.end(), from.node.text) != names.end();
  if (from.node.kind == TreeNode::Kind::kString && !known) {
    from.reject(expected(choices, out), did_you_mean(from.node.text, names));
    return false;
  }
  return read_text(from, out, choices, known);
}

template <class T, class C>
bool read(const Source& from, std::optional<T>& out, const C& constraint) {
  T value{};
  if (!read(from, value, constraint)) return false;
  out = value;
  return true;
}

template <class C>
std::string expected_count(const ListOf<C>& list) {
  return list.min_items == list.max_items
             ? fmt::format("an array of {} items", list.min_items)
             : fmt::format("an array of {} to {} items", list.min_items, list.max_items);
}

template <class T, class C>
bool read(const Source& from, std::vector<T>& out, const ListOf<C>& list) {
  if (from.node.kind != TreeNode::Kind::kArray) {
    from.reject("an array");
    return false;
  }
  const auto num_items = static_cast<std::int64_t>(from.node.items.size());
  if (num_items < list.min_items || num_items > list.max_items) {
    from.findings.add(from.node.where, fmt::format("{} has {} items; expected {}", from.path,
                                                   num_items, expected_count(list)));
    from.findings.spoil(from.path);
    return false;
  }
  std::vector<T> values;
  bool good = true;
  for (std::size_t i = 0; i < from.node.items.size(); ++i) {
    const std::string path = fmt::format("{}.{}", from.path, i);
    const Source item{from.node.items[i], path, from.findings};
    T value{};
    if (!read(item, value, list.item)) {
      good = false;
      continue;
    }
    if (list.unique && std::find(values.begin(), values.end(), value) != values.end()) {
      from.findings.add(item.node.where, fmt::format("{} has {} twice; expected each item once",
                                                     from.path, describe_value(item.node)));
      from.findings.spoil(from.path);
      good = false;
    }
    values.push_back(std::move(value));
  }
  if (good) out = std::move(values);
  return good;
}

bool read(const Source& from, std::vector<std::pair<std::string, std::string>>& out,
          const OrderedTexts&) {
  if (from.node.kind != TreeNode::Kind::kTable) {
    from.reject("a table of name = \"type sizes\"");
    return false;
  }
  bool good = true;
  std::vector<std::pair<std::string, std::string>> values;
  for (const TreeEntry& entry : from.node.entries) {
    const std::string path = from.path + "." + entry.key;
    std::string text;
    good = read(Source{entry.value, path, from.findings}, text, Text{}) && good;
    values.emplace_back(entry.key, text);
  }
  if (good) out = std::move(values);
  return good;
}

bool read(const Source& from, std::vector<std::vector<std::string>>& out, const Stages&) {
  if (from.node.kind != TreeNode::Kind::kArray) {
    from.reject("an array of names and arrays of names");
    return false;
  }
  bool good = true;
  std::vector<std::vector<std::string>> stages;
  for (std::size_t i = 0; i < from.node.items.size(); ++i) {
    const std::string path = fmt::format("{}.{}", from.path, i);
    const Source item{from.node.items[i], path, from.findings};
    std::vector<std::string> stage;
    if (item.node.kind == TreeNode::Kind::kArray) {
      good = read(item, stage, ListOf<Text>{{}, 1, 10'000, true}) && good;
    } else if (item.node.kind == TreeNode::Kind::kString) {
      stage.emplace_back();
      good = read(item, stage.back(), Text{}) && good;
    } else {
      item.reject("the name of a block or an array of names");
      good = false;
    }
    stages.push_back(std::move(stage));
  }
  if (good) out = std::move(stages);
  return good;
}

// Which tables know a key, so that a misplaced one can be sent home. ------------------------------

class KeyHomes {
 public:
  KeyHomes() { describe(*this, Of<Case>{}); }

  std::vector<std::string> homes(const std::string& key) const {
    std::vector<std::string> found;
    for (const auto& [known, table] : keys_) {
      if (known == key && std::find(found.begin(), found.end(), table) == found.end()) {
        found.push_back(table);
      }
    }
    return found;
  }

  template <class T, class S, class C>
  void field(const char* key, T S::*, const C&, const char*) {
    keys_.emplace_back(key, table_.empty() ? "the top of the file" : "[" + table_ + "]");
  }
  template <class T, class S, class C>
  void needed(const char* key, T S::*member, const C& constraint, const char* doc) {
    field(key, member, constraint, doc);
  }
  template <class T, class S, class C>
  void one_or_many(const char* key, const char* keys, T S::*member, const C& constraint,
                   const char* doc) {
    field(key, member, constraint, doc);
    field(keys, member, constraint, doc);
  }
  template <class T, class S>
  void table(const char* key, T S::*, const char*) {
    nested<T>(key);
  }
  template <class T, class S>
  void tables(const char* key, std::vector<T> S::*, TablesPlace, const char*) {
    nested<T>(key);
  }
  void expectations(const char*) { nested<ExpectSpec>("expect"); }

 private:
  template <class T>
  void nested(const char* key) {
    const std::string outer = table_;
    table_ = outer.empty() ? key : outer + "." + key;
    describe(*this, Of<T>{});
    table_ = outer;
  }

  std::string table_;
  std::vector<std::pair<std::string, std::string>> keys_;
};

// The reader of one table. ------------------------------------------------------------------------

template <class S>
class TableReader {
 public:
  TableReader(const TreeNode& node, std::string path, S& out, Findings& findings)
      : node_(node), path_(std::move(path)), out_(out), findings_(findings) {}

  /// For keys that are handled elsewhere.
  void allow(const char* key) { known_.emplace_back(key); }

  void read_all() {
    describe(*this, Of<S>{});
    for (const TreeEntry& entry : node_.entries) {
      if (std::find(known_.begin(), known_.end(), entry.key) == known_.end()) report_unknown(entry);
    }
  }

  template <class T, class C>
  void field(const char* key, T S::*member, const C& constraint, const char*) {
    if (const TreeEntry* entry = known(key)) {
      read(Source{entry->value, path_of(key), findings_}, out_.*member, constraint);
    }
  }

  template <class T, class C>
  void needed(const char* key, T S::*member, const C& constraint, const char* doc) {
    if (!node_.find(key)) {
      findings_.add(node_.where, fmt::format("{} has no '{}'; expected {} = {}", path_, key, key,
                                             expected(constraint, out_.*member)));
      findings_.spoil(path_of(key));
    }
    field(key, member, constraint, doc);
  }

  template <class T, class C>
  void one_or_many(const char* key, const char* keys, std::vector<T> S::*member,
                   const ListOf<C>& list, const char*) {
    const TreeEntry* one = known(key);
    const TreeEntry* many = known(keys);
    if (one && many) {
      findings_.add(many->key_where,
                    fmt::format("both '{}' and '{}' are given; expected one of them", key, keys));
    }
    if (one) {
      T value{};
      if (read(Source{one->value, path_of(key), findings_}, value, list.item)) {
        out_.*member = {value};
      }
    } else if (many) {
      read(Source{many->value, path_of(keys), findings_}, out_.*member, list);
    }
  }

  template <class T>
  void table(const char* key, T S::*member, const char*) {
    if (const TreeEntry* entry = known(key)) {
      read_table(entry->value, path_of(key), out_.*member);
    }
  }

  template <class T>
  void tables(const char* key, std::vector<T> S::*member, TablesPlace, const char*) {
    if (const TreeEntry* entry = known(key)) {
      out_.*member = read_tables<T>(entry->value, path_of(key));
    }
  }

  void expectations(const char*) {
    const TreeEntry* entry = known("expect");
    if (!entry) return;
    if constexpr (std::is_same_v<S, Case>) {
      if (read_table(entry->value, "expect", out_.expect, {"sim", "gloo", "torch"})) {
        read_stand_in(entry->value, "sim", out_.expect_sim);
        read_stand_in(entry->value, "gloo", out_.expect_gloo);
        if (const TreeEntry* torch = entry->value.find("torch")) {
          out_.expect_torch = read_tables<ExpectSpec>(torch->value, "expect.torch");
        }
      }
    }
  }

 private:
  std::string path_of(const std::string& key) const {
    return path_.empty() ? key : path_ + "." + key;
  }

  const TreeEntry* known(const char* key) {
    known_.emplace_back(key);
    return node_.find(key);
  }

  template <class T>
  std::vector<T> read_tables(const TreeNode& node, const std::string& path) {
    std::vector<T> values;
    if (node.kind == TreeNode::Kind::kArray) {
      for (std::size_t i = 0; i < node.items.size(); ++i) {
        read_table(node.items[i], fmt::format("{}.{}", path, i), values.emplace_back());
      }
    } else {
      read_table(node, path, values.emplace_back());
    }
    return values;
  }

  template <class T>
  bool read_table(const TreeNode& node, const std::string& path, T& out,
                  const std::vector<const char*>& also_known = {}) {
    if (node.kind != TreeNode::Kind::kTable) {
      Source{node, path, findings_}.reject("a table");
      return false;
    }
    TableReader<T> reader(node, path, out, findings_);
    for (const char* key : also_known) reader.allow(key);
    reader.read_all();
    return true;
  }

  void read_stand_in(const TreeNode& expect, const char* backend, std::optional<ExpectSpec>& out) {
    const TreeEntry* entry = expect.find(backend);
    if (!entry) return;
    const std::string path = fmt::format("expect.{}", backend);
    if (!read_table(entry->value, path, out.emplace()) || entry->value.find("outcome")) return;
    findings_.spoil(path + ".outcome");
    findings_.add(
        entry->key_where,
        fmt::format("[{0}] has no outcome; it stands in the place of [expect] as a whole, "
                    "so expected outcome = \"...\" in [{0}]",
                    path));
  }

  void report_unknown(const TreeEntry& entry) {
    std::string way_out = did_you_mean(entry.key, known_);
    if (const auto meant = nearest_name(entry.key, known_)) {
      findings_.spoil(path_of(*meant));
    } else {
      static const KeyHomes homes;
      const std::vector<std::string> found = homes.homes(entry.key);
      if (!found.empty()) {
        way_out = fmt::format("; '{}' belongs to {}", entry.key, fmt::join(found, " or "));
      }
    }
    findings_.add(entry.key_where,
                  fmt::format("unknown key '{}'{}; expected one of {}{}", entry.key,
                              path_.empty() ? "" : fmt::format(" in {}", path_),
                              fmt::join(known_, ", "), way_out));
  }

  const TreeNode& node_;
  std::string path_;
  S& out_;
  Findings& findings_;
  std::vector<std::string> known_;
};

void check_version(const TreeNode& root, Findings& findings) {
  const TreeEntry* entry = root.find("schema");
  if (!entry) {
    findings.add({1, 1}, fmt::format("key 'schema' is missing; expected schema = {} at the top",
                                     kSchemaVersion));
  } else if (entry->value.kind != TreeNode::Kind::kInteger ||
             entry->value.integer != kSchemaVersion) {
    findings.add(entry->value.where, fmt::format("schema is {}; expected {}",
                                                 describe_value(entry->value), kSchemaVersion));
  }
}

}  // namespace

void read_case(const TreeNode& root, Case& value, Findings& findings) {
  check_version(root, findings);
  TableReader<Case> reader(root, "", value, findings);
  reader.allow("schema");
  reader.allow("vary");
  reader.read_all();
}

}  // namespace lockstep::harness
