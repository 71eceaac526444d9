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

// ---- launch_order, all_reduces_per_step

bool issues_one_per_bucket(const Case& value) {
  return is_plain(value) && reduces_in_backward(value.ddp) && !has_sparse(value) &&
         (hook_averages(value) || hook_casts(value)) && one_backward_per_window(value);
}

std::vector<std::int64_t> buckets_issued(const RankRun& rank, std::int64_t step) {
  std::vector<std::int64_t> buckets;
  for (const CollectiveRecord& record : rank.collectives) {
    if (record.step == step && record.site == "bucket") {
      buckets.push_back(record.bucket);
    }
  }
  return buckets;
}

std::string launch_order_difference(const Case&, const Run& subject, Executor&) {
  for (const RankRun& rank : subject.ranks) {
    for (const StepRecord& step : rank.steps) {
      std::vector<std::int64_t> expected;
      for (const auto& plan : step.plans) {
        for (std::size_t b = 0; plan != nullptr && b < plan->buckets.size(); ++b) {
          expected.push_back(static_cast<std::int64_t>(b));
        }
      }
      const std::vector<std::int64_t> actual = buckets_issued(rank, step.step);
      if (actual != expected) {
        return fmt::format("rank {}, step {}: buckets are launched in the order {}, not {}",
                           rank.rank, step.step, fmt::join(actual, " "), fmt::join(expected, " "));
      }
    }
  }
  return "";
}

std::string all_reduces_difference(const Case& value, const Run& subject, Executor&) {
  const std::vector<std::int64_t> first_steps = first_steps_of_wrappers(value);
  for (const RankRun& rank : subject.ranks) {
    bool has_map = false;  // a static graph's, of this wrapper
    for (const StepRecord& step : rank.steps) {
      if (std::find(first_steps.begin(), first_steps.end(), step.step) != first_steps.end()) {
        has_map = false;
      }
      std::int64_t expected = 0;
      for (const auto& plan : step.plans) {
        if (plan == nullptr) continue;
        const bool with_map = value.ddp.static_graph ? !has_map : value.ddp.find_unused_parameters;
        has_map = true;
        expected += static_cast<std::int64_t>(plan->buckets.size()) + (with_map ? 1 : 0);
      }
      const auto actual = std::count_if(
          rank.collectives.begin(), rank.collectives.end(), [&](const CollectiveRecord& record) {
            return record.step == step.step &&
                   (record.site == "bucket" || record.site == "used_map");
          });
      if (actual != expected) {
        return fmt::format("rank {}, step {}: {} all_reduces of buckets and used maps, not {}",
                           rank.rank, step.step, actual, expected);
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
      {"launch_order", "buckets are launched in index order, each once (T2)", issues_one_per_bucket,
       launch_order_difference},
      {"all_reduces_per_step",
       "a synchronised backward issues one all_reduce per bucket, and one for a used map (T8)",
       issues_one_per_bucket, all_reduces_difference},
      {"unused_untouched", "what no rank used keeps its gradient (T4)", unused_untouched_applies,
       unused_untouched_difference},
  };
  return kInvariants;
}

}  // namespace lockstep::harness::fuzz
