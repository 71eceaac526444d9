// SPDX-License-Identifier: Apache-2.0
// Invariants of the order in which the wrapper does things.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "harness/fuzz/properties/invariants.h"
#include "harness/fuzz/script_traits.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {
namespace {

bool has_windows_alone(const Case& value) {
  return is_plain(value) && value.ddp.sync == "ddp" && value.ddp.join == "off" &&
         one_backward_per_window(value);
}

// Follows one rank's windows: from a forward that arms to the finalize of its backward.
class WindowCheck {
 public:
  explicit WindowCheck(const RankRun& rank) : rank_(rank) {}

  std::string run(const std::vector<RankEvent>& events) {
    for (const RankEvent& event : events) {
      take(event);
      if (!found_.empty()) {
        return fmt::format("rank {}, step {}: {}", rank_.rank, step_, found_);
      }
    }
    return "";
  }

 private:
  void take(const RankEvent& event) {
    if (event.kind == "step_begin") {
      step_ = event.index;
      record_ = find_step(rank_, step_);
      num_finalized_ = 0;
    } else if (event.kind == "forward" && event.index == 1) {
      armed_ = true;
      ready_.clear();
      num_launched_ = 0;
    } else if (event.kind == "gradient_ready" || event.kind == "unused_marked") {
      expect(armed_, fmt::format("parameter {} becomes ready in no window", event.index));
      expect(ready_.insert(event.index).second,
             fmt::format("parameter {} becomes ready twice", event.index));
    } else if (event.kind == "bucket_launched") {
      launch(event.index);
    } else if (event.kind == "finalized") {
      expect(armed_, "a reduction is finalized in no window");
      const ReductionPlan* plan = current_plan();
      expect(plan == nullptr || num_launched_ == static_cast<std::int64_t>(plan->buckets.size()),
             fmt::format("finalized with {} buckets launched", num_launched_));
      armed_ = false;
      ++num_finalized_;
    } else if (event.kind == "step_end" && record_ != nullptr) {
      const auto windows = std::count_if(record_->plans.begin(), record_->plans.end(),
                                         [](const auto& plan) { return plan != nullptr; });
      expect(windows == num_finalized_,
             fmt::format("{} synchronised backwards, {} finalized", windows, num_finalized_));
    }
  }

  void launch(std::int64_t bucket) {
    expect(bucket == num_launched_,
           fmt::format("bucket {} is launched after {} others", bucket, num_launched_));
    ++num_launched_;
    const ReductionPlan* plan = current_plan();
    if (plan == nullptr || bucket >= static_cast<std::int64_t>(plan->buckets.size())) return;
    for (const std::int64_t parameter : plan->buckets[static_cast<std::size_t>(bucket)]) {
      expect(ready_.count(parameter) > 0,
             fmt::format("bucket {} is launched before parameter {} is ready", bucket, parameter));
    }
  }

  // Of the window that comes next in this step, or of the one that it is in.
  const ReductionPlan* current_plan() const {
    std::int64_t skip = num_finalized_;
    for (std::size_t i = 0; record_ != nullptr && i < record_->plans.size(); ++i) {
      if (record_->plans[i] != nullptr && skip-- == 0) return record_->plans[i].get();
    }
    return nullptr;
  }

  void expect(bool holds, const std::string& otherwise) {
    if (!holds && found_.empty()) found_ = otherwise;
  }

  const RankRun& rank_;
  const StepRecord* record_ = nullptr;
  std::int64_t step_ = -1, num_launched_ = 0, num_finalized_ = 0;
  bool armed_ = false;
  std::set<std::int64_t> ready_;
  std::string found_;
};

std::string check_windows(const Case& value, const Run& subject, Executor&) {
  return window_difference(value, subject, events_of(value, subject));
}

// The steps in which a forward rebuilds: in each wrapper's life the first forward after the
// backward that recorded the order (D3, D6).
std::vector<std::int64_t> rebuilding_steps(const Case& value) {
  std::vector<std::int64_t> steps;
  if (value.ddp.find_unused_parameters && !value.ddp.static_graph) {
    return steps;
  }
  const std::int64_t needed = value.ddp.static_graph ? 2 : 1;
  const std::vector<std::int64_t> first_steps = first_steps_of_wrappers(value);
  std::int64_t num_synced = 0;
  bool is_rebuilt = false;
  const Program program = compile_subject(value);
  for (const StepPlan& plan : program.ranks.front().steps) {
    if (std::find(first_steps.begin(), first_steps.end(), plan.step) != first_steps.end()) {
      num_synced = 0;
      is_rebuilt = false;
    }
    for (const MicroBatch& micro : plan.micro_batches) {
      if (!is_rebuilt && num_synced >= needed) {
        steps.push_back(plan.step);
        is_rebuilt = true;
      }
      num_synced += micro.sync ? 1 : 0;
    }
  }
  return steps;
}

// Ready order of rank 0 in the window that was finalized before each of its rebuilds.
std::vector<std::vector<std::int64_t>> recorded_orders(const std::vector<RankEvent>& events) {
  std::vector<std::vector<std::int64_t>> orders;
  std::vector<std::int64_t> ready, unused, last;
  for (const RankEvent& event : events) {
    if (event.kind == "gradient_ready") {
      ready.push_back(event.index);
    } else if (event.kind == "unused_marked") {
      unused.push_back(event.index);
    } else if (event.kind == "finalized") {
      last = std::move(ready);
      last.insert(last.end(), unused.begin(), unused.end());
      ready.clear();
      unused.clear();
    } else if (event.kind == "rebuilt") {
      orders.push_back(last);
    }
  }
  return orders;
}

// A rebuild within a step may come after its first synchronised backward.
const ReductionPlan* last_plan_of(const RankRun& rank, std::int64_t step) {
  const StepRecord* record = find_step(rank, step);
  const ReductionPlan* last = nullptr;
  for (std::size_t i = 0; record != nullptr && i < record->plans.size(); ++i) {
    last = record->plans[i] != nullptr ? record->plans[i].get() : last;
  }
  return last;
}

std::string order_difference(const Case& value, const RankRun& rank, std::int64_t step,
                             const std::vector<std::int64_t>& order) {
  const ReductionPlan* plan = last_plan_of(rank, step);
  if (plan == nullptr || has_other_dtypes(value) || has_sparse(value)) {
    return "";
  }
  std::vector<std::int64_t> actual;
  for (const auto& bucket : plan->buckets) {
    actual.insert(actual.end(), bucket.begin(), bucket.end());
  }
  return actual == order
             ? ""
             : fmt::format(
                   "rank {}, step {}: after the rebuild parameters come in the order {}, "
                   "and became ready on rank 0 in the order {}",
                   rank.rank, step, fmt::join(actual, " "), fmt::join(order, " "));
}

std::string check_rebuilds(const Case& value, const Run& subject, Executor&) {
  return rebuild_difference(value, subject, events_of(value, subject));
}

}  // namespace

std::string window_difference(const Case&, const Run& subject,
                              const std::vector<std::vector<RankEvent>>& events) {
  for (std::size_t rank = 0; rank < events.size(); ++rank) {
    const std::string found = WindowCheck(subject.ranks[rank]).run(events[rank]);
    if (!found.empty()) return found;
  }
  return "";
}

std::string rebuild_difference(const Case& value, const Run& subject,
                               const std::vector<std::vector<RankEvent>>& events) {
  const std::vector<std::int64_t> expected = rebuilding_steps(value);
  const auto orders = recorded_orders(events.front());
  for (const RankRun& rank : subject.ranks) {
    std::vector<std::int64_t> actual;
    for (const CollectiveRecord& record : rank.collectives) {
      if (record.site == "rebuild_order") actual.push_back(record.step);
    }
    if (actual != expected || rank.rebuilds != static_cast<std::int64_t>(expected.size())) {
      return fmt::format("rank {} rebuilds {} times, in the steps [{}], not in [{}]", rank.rank,
                         rank.rebuilds, fmt::join(actual, " "), fmt::join(expected, " "));
    }
    for (std::size_t i = 0; i < expected.size() && i < orders.size(); ++i) {
      const std::string found = order_difference(value, rank, expected[i], orders[i]);
      if (!found.empty()) return found;
    }
  }
  return "";
}

const std::vector<Property>& event_invariants() {
  static const std::vector<Property> kInvariants = {
      {"reduction_window",
       "a bucket is launched when its own gradients are ready, and each synchronised backward "
       "finalizes once (T2, T9)",
       has_windows_alone, check_windows},
      {"rebuild_once", "buckets are rebuilt once, in the predicted forward, in rank 0's order (T7)",
       has_windows_alone, check_rebuilds},
  };
  return kInvariants;
}

}  // namespace lockstep::harness::fuzz
