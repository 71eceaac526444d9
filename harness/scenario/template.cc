// SPDX-License-Identifier: Apache-2.0
// Visitor of the schema that writes the commented scenario of `lockstep new`.
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/scenario.h"
#include "harness/scenario/schema.h"
#include "harness/scenario/text.h"

namespace lockstep::harness {

namespace {

constexpr std::size_t kCommentColumn = 40;

template <class C>
std::string allowed(const C&) {
  return {};
}

std::string allowed(const IntRange& range) {
  return range.max <= 64 ? fmt::format("{} .. {}", range.min, range.max) : std::string();
}

std::string allowed(const Choices& choices) {
  return fmt::format("{}", fmt::join(names_of(choices), " | "));
}

/// As comment lines of at most kColumns, broken at spaces.
std::string as_comment_lines(const std::string& text) {
  std::string lines, line = "#";
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kColumns) {
      lines += line + '\n';
      line = "#  ";
    }
    line += ' ' + word;
  }
  return lines + line + '\n';
}

/// The comment behind the line where there is room, before it otherwise.
std::string commented(std::string line, const std::string& comment) {
  const std::size_t column = std::max(line.size() + 1, kCommentColumn);
  if (column + 2 + comment.size() > kColumns) return as_comment_lines(comment) + line + '\n';
  line.resize(column, ' ');
  return fmt::format("{}# {}\n", line, comment);
}

/// One line per key: those that differ from the defaults enabled, the rest behind a '#'.
template <class S>
class TemplateWriter {
 public:
  TemplateWriter(const S& value, std::vector<std::string> enabled, std::string prefix,
                 std::string& out)
      : value_(value), enabled_(std::move(enabled)), prefix_(std::move(prefix)), out_(out) {
    describe(*this, Of<S>{});
  }

  template <class T, class C>
  void field(const char* key, T S::*member, const C& constraint, const char* doc) {
    const std::string text = value_text(value_.*member);
    if (text.empty()) return;
    const bool enabled = std::find(enabled_.begin(), enabled_.end(), key) != enabled_.end();
    const std::string line = fmt::format("{}{}{} = {}", enabled ? "" : "#", prefix_, key, text);
    const std::string range = allowed(constraint);
    out_ += commented(line, fmt::format("{}{}", doc, range.empty() ? "" : " (" + range + ")"));
  }

  // A model of blocks has an example of its own.
  void field(const char*, std::vector<std::vector<std::string>> S::*, const Stages&, const char*) {}
  void field(const char*, std::vector<std::pair<std::string, std::string>> S::*,
             const OrderedTexts&, const char*) {}

  template <class T>
  void table(const char* key, T S::*member, const char*) {
    if constexpr (std::is_same_v<S, Case>) {
      out_ += fmt::format("\n[{}]\n", key);
      TemplateWriter<T>(value_.*member, enabled_, "", out_);
    } else {
      TemplateWriter<T>(value_.*member, enabled_, std::string(key) + ".", out_);
    }
  }

  // Lists of tables have examples of their own.
  template <class T>
  void tables(const char*, std::vector<T> S::*, TablesPlace, const char*) {}
  void expectations(const char*) {}

 private:
  const S& value_;
  const std::vector<std::string> enabled_;
  const std::string prefix_;
  std::string& out_;
};

constexpr const char* kHead =
    R"(# A line that starts with '#' and a key shows its default; take the '#' away to change it.
# `lockstep check` names every mistake; `lockstep list` shows the cases this file stands for.
schema = 1
)";

constexpr const char* kTail = R"(
# A model of named blocks instead of an mlp; a stage of several blocks gives several heads:
#   [model]
#   kind = "graph"
#   blocks = { trunk = "linear 8 16", act = "relu", left = "linear 16 4", right = "linear 16 2" }
#   forward = ["trunk", "act", ["left", "right"]]

# Something that ranks do at steps, counted from 0; one action per [[at]]: skip, exit_after, mute,
# without_loss, samples, micro_batches, freeze, unfreeze, lr, raise (and retry), stall, leave,
# skip_step, detach, sleep_ms, collective, evaluate, reload, add_buffer, bypass, copy_gradients,
# sync_buffers, scale_buffers, keep_gradients, ascend.
#[[at]]
#rank = 1
#step = 1
#sleep_ms = 5

# A planted mistake; the references run what was meant.
#[[fault]]
#kind = "sum_not_mean"

# One case per combination; keys under [[vary.linked]] change together.
#[vary]
#"world.ranks" = [2, 4]
#seed = { first = 1, count = 5 }
#pairwise = false
#[[vary.linked]]
#"train.batch_per_rank" = [4, 8]
#"train.micro_batches" = [1, 2]

# diverged: step, phase, rank, tensor, oracle. error, crash: error, message, rank, step.
# deadlock: waiting, error, message. diverged, deadlock, error: cause, never_ready, cure.
# Any: issued, values, ends.
# [expect.sim] and [expect.gloo] stand in the place of [expect] on that backend, [expect.torch] with
# PyTorch's reducer; that one says why in its reason.
[expect]
)";

}  // namespace

std::string scenario_template(const std::string& title) {
  Case value;
  value.title = title;
  value.expect.outcome = "within_bound";
  std::string out = kHead;
  TemplateWriter<Case>(
      value,
      {"title", "seed", "ranks", "kind", "widths", "samples", "steps", "batch_per_rank", "lr"}, "",
      out);
  out += kTail;
  std::string expect;
  TemplateWriter<ExpectSpec>(value.expect, {"outcome"}, "", expect);
  // Only what every outcome has; the rest is named above.
  const auto end_of_second = expect.find('\n', expect.find('\n') + 1);
  return out + expect.substr(0, end_of_second + 1);
}

}  // namespace lockstep::harness
