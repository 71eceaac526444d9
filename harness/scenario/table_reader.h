// SPDX-License-Identifier: Apache-2.0
// Visitor of a schema that reads a table, key by key, and says what is wrong with it.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/case.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/schema.h"
#include "harness/scenario/tree.h"
#include "harness/scenario/values.h"

namespace lockstep::harness {

/// Which tables of a file know a key, so that a misplaced one can be sent home.
template <class Root>
class KeyHomes {
 public:
  KeyHomes() { describe(*this, Of<Root>{}); }

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

/// Reads one table into a struct that a schema describes; `Root` is what the whole file is read
/// into.
template <class S, class Root>
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
      read_value(Source{entry->value, path_of(key), findings_}, out_.*member, constraint);
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
      if (read_value(Source{one->value, path_of(key), findings_}, value, list.item)) {
        out_.*member = {value};
      }
    } else if (many) {
      read_value(Source{many->value, path_of(keys), findings_}, out_.*member, list);
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
    TableReader<T, Root> reader(node, path, out, findings_);
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
      static const KeyHomes<Root> homes;
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

/// A finding unless schema = kSchemaVersion is there.
void check_version(const TreeNode& root, Findings& findings);

/// Fills `value` from the root table of a file; [vary] is left to others.
template <class T>
void read_root(const TreeNode& root, T& value, Findings& findings) {
  check_version(root, findings);
  TableReader<T, T> reader(root, "", value, findings);
  reader.allow("schema");
  reader.allow("vary");
  reader.read_all();
}

}  // namespace lockstep::harness
