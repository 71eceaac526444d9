// SPDX-License-Identifier: Apache-2.0
// Compares two runs rank by rank, step by step, in the order in which a step is made.
#include "harness/fuzz/properties/run_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/check.h"

namespace lockstep::harness::fuzz {
namespace {

class RankDifference {
 public:
  RankDifference(const RankRun& a, const RankRun& b, const Alike& alike)
      : a_(a), b_(b), alike_(alike) {
    compare_endings();
    compare_numbers("construction", "parameter", a.initial_parameters, b.initial_parameters);
    const std::size_t num_steps = std::min(a.steps.size(), b.steps.size());
    for (std::size_t at = 0; at < num_steps; ++at) {
      compare_step(a.steps[at], b.steps[at]);
    }
    compare_numbers("the end of join", "parameter", a.final_parameters, b.final_parameters);
    if (alike.buffers) {
      compare_numbers("the end of join", "buffer", a.final_buffers, b.final_buffers);
    }
  }

  const std::string& text() const { return text_; }

 private:
  void differ(const std::string& where, const std::string& a, const std::string& b) {
    if (text_.empty()) {
      text_ = fmt::format("rank {}, {}: {} and {}", a_.rank, where, a, b);
    }
  }

  void compare_endings() {
    const auto text = [](const RankRun& rank) {
      return fmt::format("{}{}{} after {} steps", to_string(rank.ending),
                         rank.error_kind.empty() ? "" : " with ", rank.error_kind,
                         rank.steps.size());
    };
    if (text(a_) != text(b_)) {
      differ("the end", text(a_), text(b_));
    }
  }

  void compare_step(const StepRecord& a, const StepRecord& b) {
    const std::string where = fmt::format("step {}", a.step);
    if (a.step != b.step) {
      differ(where, fmt::format("step {}", a.step), fmt::format("step {}", b.step));
    }
    if (alike_.losses) {
      compare_losses(where, a.losses, b.losses);
    }
    compare_numbers(where, "gradient", a.gradients, b.gradients);
    compare_numbers(where, "parameter", a.parameters, b.parameters);
    compare_numbers(where, "optimizer", a.optimizer, b.optimizer);
    if (alike_.buffers) {
      compare_numbers(where, "buffer", a.buffers, b.buffers);
    }
  }

  void compare_losses(const std::string& where, const std::vector<double>& a,
                      const std::vector<double>& b) {
    if (a.size() != b.size()) {
      differ(where, fmt::format("{} losses", a.size()), fmt::format("{} losses", b.size()));
      return;
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) {
        differ(fmt::format("{}, loss of micro-batch {}", where, i), fmt::format("{:.17g}", a[i]),
               fmt::format("{:.17g}", b[i]));
      }
    }
  }

  void compare_numbers(const std::string& where, const char* what, const Snapshot& a,
                       const Snapshot& b) {
    if (!text_.empty() || (a.slots == nullptr && b.slots == nullptr)) {
      return;
    }
    if (a.slots == nullptr || b.slots == nullptr) {
      differ(where, a.slots == nullptr ? "nothing" : what, b.slots == nullptr ? "nothing" : what);
      return;
    }
    if (const std::optional<Divergence> found = first_difference(a, b, alike_.numbers)) {
      const std::string place =
          found->element < 0 ? found->tensor : fmt::format("{}[{}]", found->tensor, found->element);
      differ(fmt::format("{}, {} {}", where, what, place), found->expected, found->actual);
    }
  }

  const RankRun& a_;
  const RankRun& b_;
  const Alike& alike_;
  std::string text_;
};

}  // namespace

std::string run_difference(const Run& subject, const Run& other, const Alike& alike) {
  LOCKSTEP_CHECK(subject.ranks.size() == other.ranks.size(), "runs of {} and {} ranks",
                 subject.ranks.size(), other.ranks.size());
  for (std::size_t rank = 0; rank < other.ranks.size(); ++rank) {
    const std::size_t partner =
        alike.partner.empty() ? rank : static_cast<std::size_t>(alike.partner[rank]);
    const RankDifference found(subject.ranks[partner], other.ranks[rank], alike);
    if (!found.text().empty()) {
      return found.text();
    }
  }
  return "";
}

bool ended_well(const Run& run) {
  return std::all_of(run.ranks.begin(), run.ranks.end(), [](const RankRun& rank) {
    return rank.ending == Ending::kFinished || rank.ending == Ending::kLeft;
  });
}

bool rounded(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [](const RankRun& rank) {
    return std::any_of(rank.steps.begin(), rank.steps.end(),
                       [](const StepRecord& step) { return !step.inexact_in.empty(); });
  });
}

}  // namespace lockstep::harness::fuzz
