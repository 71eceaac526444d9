// SPDX-License-Identifier: Apache-2.0
// Invariants of what ranks issue and of what they leave behind.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "harness/fuzz/properties/invariants.h"
#include "harness/fuzz/script_traits.h"
#include "harness/model.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {
namespace {

// ---- collective_sequence

// A joined rank is in no step, so that steps are not compared.
std::string text(const CollectiveRecord& record) {
  return fmt::format("{} {} of {} x {}", record.site, record.collective, record.numel,
                     record.dtype);
}

bool collective_sequence_applies(const Case& value) {
  return !value.launch.is_asked_for() && value.world.ranks > 1;
}

std::string collective_sequence_difference(const Case&, const Run& subject, Executor&) {
  const std::vector<CollectiveRecord>& first = subject.ranks.front().collectives;
  for (const RankRun& rank : subject.ranks) {
    const std::vector<CollectiveRecord>& own = rank.collectives;
    for (std::size_t at = 0; at < std::max(first.size(), own.size()); ++at) {
      const std::string a = at < first.size() ? text(first[at]) : "nothing";
      const std::string b = at < own.size() ? text(own[at]) : "nothing";
      if (a != b) {
        return fmt::format("collective {}: rank 0 issues {}, rank {} {}", at, a, rank.rank, b);
      }
    }
  }
  return "";
}

// ---- launch_order

bool launch_order_applies(const Case& value) {
  return is_plain(value) && reduces_in_backward(value.ddp) && !has_sparse(value) &&
         (hook_averages(value) || hook_casts(value)) && one_backward_per_window(value);
}

std::vector<std::string> launches(const RankRun& rank, std::int64_t step) {
  std::vector<std::string> launched;
  for (const CollectiveRecord& record : rank.collectives) {
    if (record.step != step) continue;
    if (record.site == "bucket") launched.push_back(std::to_string(record.bucket));
    if (record.site == "used_map") launched.emplace_back("map");
  }
  return launched;
}

// The used map of a search comes when all buckets are launched (F6); the one of a static graph,
// in the first synchronised backward of its wrapper, comes before them (L3).
std::string launch_order_difference(const Case& value, const Run& subject, Executor&) {
  const std::vector<std::int64_t> first_steps = first_steps_of_wrappers(value);
  for (const RankRun& rank : subject.ranks) {
    bool is_recorded = false;
    for (const StepRecord& step : rank.steps) {
      if (std::find(first_steps.begin(), first_steps.end(), step.step) != first_steps.end()) {
        is_recorded = false;
      }
      std::vector<std::string> expected;
      for (const auto& plan : step.plans) {
        if (plan == nullptr) continue;
        if (value.ddp.static_graph && !is_recorded) expected.emplace_back("map");
        is_recorded = true;
        for (std::size_t b = 0; b < plan->buckets.size(); ++b) {
          expected.push_back(std::to_string(b));
        }
        if (!value.ddp.static_graph && value.ddp.find_unused_parameters) {
          expected.emplace_back("map");
        }
      }
      const std::vector<std::string> actual = launches(rank, step.step);
      if (actual != expected) {
        return fmt::format("rank {}, step {}: launches [{}], not [{}]", rank.rank, step.step,
                           fmt::join(actual, " "), fmt::join(expected, " "));
      }
    }
  }
  return "";
}

// ---- unused_untouched

// Undefined gradients show whether somebody touched them.
bool unused_untouched_applies(const Case& value) {
  return is_plain(value) && reduces_in_backward(value.ddp) && value.train.zero_grad == "none" &&
         (value.ddp.find_unused_parameters || value.ddp.static_graph);
}

// Parameters of blocks that no rank ran in a step. Where a route ends early it is taken to run all
// that it does not skip.
std::set<std::string> unused_in_step(const Case& value, const Program& program, std::int64_t step) {
  std::set<std::string> used;
  for (const RankProgram& rank : program.ranks) {
    if (step >= static_cast<std::int64_t>(rank.steps.size())) continue;
    for (const MicroBatch& micro : rank.steps[static_cast<std::size_t>(step)].micro_batches) {
      for (const Part& part : micro.parts) {
        const std::vector<std::string>& skip = part.route.skip;
        const auto run = [&](const std::string& block) {
          if (std::find(skip.begin(), skip.end(), block) == skip.end()) {
            for (const std::string& name : parameters_of(value.model, block)) used.insert(name);
          }
        };
        for (const auto& stage : value.model.forward)
          std::for_each(stage.begin(), stage.end(), run);
        if (value.model.forward.empty()) {
          for (const std::string& block : block_names(value.model)) run(block);
        }
      }
    }
  }
  std::set<std::string> unused;
  for (const std::string& name : parameter_names(value.model)) {
    if (used.count(name) == 0) unused.insert(name);
  }
  return unused;
}

std::string unused_untouched_difference(const Case& value, const Run& subject, Executor&) {
  const Program program = compile_subject(value);
  for (const RankRun& rank : subject.ranks) {
    for (const StepRecord& step : rank.steps) {
      const std::set<std::string> unused = unused_in_step(value, program, step.step);
      for (const TensorSlot& slot : *step.gradients.slots) {
        if (slot.defined && unused.count(slot.name) > 0) {
          return fmt::format("rank {}, step {}: {}, which no rank used, has a gradient", rank.rank,
                             step.step, slot.name);
        }
      }
    }
  }
  return "";
}

}  // namespace

const std::vector<Property>& run_invariants() {
  static const std::vector<Property> kInvariants = {
      {"collective_sequence", "all ranks issue the same collectives in the same order (T1)",
       collective_sequence_applies, collective_sequence_difference},
      {"launch_order",
       "a synchronised backward launches its buckets in index order, each once, and its used map "
       "behind them or, in a static graph's first, before them (T2, T8, L3)",
       launch_order_applies, launch_order_difference},
      {"unused_untouched", "what no rank used keeps its gradient (T4)", unused_untouched_applies,
       unused_untouched_difference},
  };
  return kInvariants;
}

}  // namespace lockstep::harness::fuzz
