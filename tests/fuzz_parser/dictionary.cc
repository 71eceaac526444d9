// SPDX-License-Identifier: Apache-2.0
// Visitor of the schemas that collects their words, so that none has to be listed twice.
#include "tests/fuzz_parser/dictionary.h"

#include <set>
#include <vector>

#include "harness/block_spec.h"
#include "harness/scenario/schema.h"
#include "harness/scenario/text.h"
#include "harness/timing/schema.h"

namespace lockstep::harness {

namespace {

class WordCollector {
 public:
  std::set<std::string> take() { return std::move(words_); }

  template <class T, class S, class C>
  void field(const char* key, T S::*, const C& constraint, const char*) {
    words_.insert(std::string(key) + " = ");
    add(constraint);
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
    words_.insert(std::string("[") + key + "]\n");
    describe(*this, Of<T>{});
  }
  template <class T, class S>
  void tables(const char* key, std::vector<T> S::*, TablesPlace place, const char*) {
    const std::string name = key;
    words_.insert(place == TablesPlace::kSections ? "[[" + name + "]]\n" : name + " = [{ ");
    describe(*this, Of<T>{});
  }
  void expectations(const char*) {
    for (const char* header : {"expect", "expect.sim", "expect.gloo", "expect.torch"}) {
      words_.insert(std::string("[") + header + "]\n");
    }
    words_.insert("[[expect.torch]]\n");
    describe(*this, Of<ExpectSpec>{});
  }

 private:
  void add(const Choices& choices) {
    for (const std::string& name : names_of(choices)) words_.insert(quoted(name));
  }
  template <class C>
  void add(const ListOf<C>& list) {
    add(list.item);
  }
  template <class C>
  void add(const C&) {}

  std::set<std::string> words_;
};

}  // namespace

std::string fuzzer_dictionary() {
  WordCollector collector;
  describe(collector, Of<Case>{});
  describe(collector, Of<TimingCase>{});
  std::set<std::string> words = collector.take();
  for (int kind = 0; kind <= static_cast<int>(BlockKind::kSame); ++kind) {
    words.insert(std::string(to_string(static_cast<BlockKind>(kind))) + " ");
  }
  words.insert({"schema = 1\n", "[vary]\n", "[[vary.linked]]\n", "{ first = 1, count = 5 }",
                "pairwise = true\n", "sample = 3\n"});
  std::string text;
  for (const std::string& word : words) {
    text += '"';
    for (const char c : word) {
      if (c == '"' || c == '\\') text += '\\';
      text += c == '\n' ? std::string("\\x0A") : std::string(1, c);
    }
    text += "\"\n";
  }
  return text;
}

}  // namespace lockstep::harness
