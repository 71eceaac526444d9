// SPDX-License-Identifier: Apache-2.0
// Visitor of the schema that prints a case: only what differs from the defaults.
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/scenario.h"
#include "harness/scenario/schema.h"
#include "harness/scenario/text.h"

namespace lockstep::harness {

namespace {

template <class T, class C>
std::vector<std::string> items_of(const T&, const C&) {
  return {};
}

template <class T, class C>
std::vector<std::string> items_of(const std::vector<T>& values, const ListOf<C>&) {
  return item_texts(values);
}

/// Prints one table: its own keys into `lines`, nested tables into `sections`.
template <class S>
class TableWriter {
 public:
  TableWriter(const S& value, std::string path) : value_(value), path_(std::move(path)) {
    describe(*this, Of<S>{});
  }

  /// key = value lines.
  const std::string& lines() const { return lines_; }
  /// Everything that follows, with headers.
  const std::string& sections() const { return sections_; }
  /// { key = value, ... }
  std::string inline_text() const { return fmt::format("{{ {} }}", fmt::join(pairs_, ", ")); }
  std::string section(const std::string& header) const {
    return fmt::format("\n{}\n{}{}", header, lines_, sections_);
  }
  bool all_default() const { return pairs_.empty() && sections_.empty(); }

  /// Prints a key even where its value is the default.
  static TableWriter with_outcome(const S& value, const std::string& path) {
    return TableWriter(value, path, "outcome");
  }

  template <class T, class C>
  void field(const char* key, T S::*member, const C& constraint, const char*) {
    const T& value = value_.*member;
    if (value == defaults_.*member && key != always_) return;
    add(key, value_text(value), items_of(value, constraint));
  }

  template <class T, class C>
  void needed(const char* key, T S::*member, const C& constraint, const char*) {
    add(key, value_text(value_.*member), items_of(value_.*member, constraint));
  }

  void field(const char* key, std::vector<std::vector<std::string>> S::*member, const Stages&,
             const char*) {
    if (!(value_.*member == defaults_.*member)) {
      const std::vector<std::string> items = stage_texts(value_.*member);
      add(key, array_text(items), items);
    }
  }

  void field(const char* key, std::vector<std::pair<std::string, std::string>> S::*member,
             const OrderedTexts&, const char*) {
    const std::vector<std::string> pairs = pair_texts(value_.*member);
    if (pairs.empty()) return;
    const std::string text = fmt::format("{{ {} }}", fmt::join(pairs, ", "));
    if (std::string(key).size() + 3 + text.size() <= kColumns) {
      add(key, text, {});
    } else {
      sections_ += fmt::format("\n[{}.{}]\n{}\n", path_, key, fmt::join(pairs, "\n"));
    }
  }

  template <class T, class C>
  void one_or_many(const char* key, const char* keys, std::vector<T> S::*member,
                   const ListOf<C>& list, const char*) {
    const std::vector<T>& values = value_.*member;
    if (values.empty()) return;
    if (values.size() == 1) {
      add(key, value_text(values.front()), {});
    } else {
      add(keys, value_text(values), items_of(values, list));
    }
  }

  template <class T>
  void table(const char* key, T S::*member, const char*) {
    const TableWriter<T> writer(value_.*member, key);
    if (writer.all_default()) return;
    if (path_.empty()) {
      sections_ += writer.section(fmt::format("[{}]", key));
    } else {
      add(key, writer.inline_text(), {});
    }
  }

  template <class T>
  void tables(const char* key, std::vector<T> S::*member, TablesPlace place, const char*) {
    std::vector<std::string> items;
    for (const T& value : value_.*member) {
      const TableWriter<T> writer(value, key);
      if (place == TablesPlace::kSections) {
        sections_ += writer.section(fmt::format("[[{}]]", key));
      } else {
        items.push_back(writer.inline_text());
      }
    }
    if (!items.empty()) add(key, array_text(items), items);
  }

  void expectations(const char*) {
    if constexpr (std::is_same_v<S, Case>) {
      sections_ += with_outcome_section(value_.expect, "expect");
      if (value_.expect_sim) sections_ += with_outcome_section(*value_.expect_sim, "expect.sim");
      if (value_.expect_gloo) sections_ += with_outcome_section(*value_.expect_gloo, "expect.gloo");
      const bool one = value_.expect_torch.size() == 1;
      for (const ExpectSpec& torch : value_.expect_torch) {
        sections_ += with_outcome_section(torch, one ? "expect.torch" : "[expect.torch]");
      }
    }
  }

 private:
  TableWriter(const S& value, std::string path, std::string always)
      : value_(value), path_(std::move(path)), always_(std::move(always)) {
    describe(*this, Of<S>{});
  }

  static std::string with_outcome_section(const ExpectSpec& value, const std::string& path) {
    return TableWriter<ExpectSpec>::with_outcome(value, path).section("[" + path + "]");
  }

  void add(const std::string& key, const std::string& text, const std::vector<std::string>& items) {
    pairs_.push_back(fmt::format("{} = {}", key, text));
    lines_ += key_value_line(key, text, items);
  }

  const S& value_;
  const S defaults_{};
  std::string path_, always_, lines_, sections_;
  std::vector<std::string> pairs_;
};

}  // namespace

std::string print_case(const Case& value) {
  const TableWriter<Case> writer(value, "");
  return fmt::format("schema = {}\n{}{}", kSchemaVersion, writer.lines(), writer.sections());
}

}  // namespace lockstep::harness
