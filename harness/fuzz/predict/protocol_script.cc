// SPDX-License-Identifier: Apache-2.0
// What one rank issues: construction, forwards, backwards, script, and what goes wrong with them.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "harness/fault_kinds.h"
#include "harness/fuzz/predict/act_writer.h"
#include "harness/fuzz/predict/protocol.h"
#include "harness/fuzz/predict/settled.h"
#include "harness/model.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {

namespace {

// Rule ids refer to the catalogue of DDP semantics.
class RankScript {
 public:
  RankScript(const Case& value, const Settled& facts, std::int64_t rank)
      : value_(value),
        facts_(facts),
        rank_(rank),
        acts_(value, rank, [this](const Issued& issued) { events_before(issued); }) {}

  std::optional<RankActs> run() {
    const bool reloads_first =
        std::any_of(value_.at.begin(), value_.at.end(),
                    [](const AtSpec& at) { return at.reload && covers(at.steps, 0); });
    if (reloads_first) {
      return std::nullopt;
    }
    construct();
    const std::int64_t num_steps =
        value_.train.steps_of_rank.empty()
            ? value_.train.steps
            : value_.train.steps_of_rank[static_cast<std::size_t>(rank_)];
    for (step_ = 0; step_ < num_steps && !acts_.has_ended() && !acts_.is_open(); ++step_) {
      run_step();
    }
    if (acts_.is_open()) {
      return std::nullopt;
    }
    return RankActs{acts_.take(), armed_ ? missing_ : std::vector<std::string>()};
  }

 private:
  using Handle = ActWriter::Handle;

  void events_before(const Issued& issued) {
    for (std::size_t i = 0; i < value_.at.size(); ++i) {
      const AtSpec& at = value_.at[i];
      if (!at.site.empty() && at.site == issued.site && covers(at.ranks, rank_) &&
          covers(at.steps, acts_.step()) && at.bucket.value_or(issued.index) == issued.index) {
        disturb(at, i);
      }
    }
  }

  // --- the wrapper ----------------------------------------------------------------------------

  // A6.
  void construct() {
    rebuilt_ = rebuild_due_ = armed_ = owed_ = recorded_ = false;
    buffers_due_ = true;
    const bool synced = value_.ddp.init_sync && !has_fault(value_, "no_initial_broadcast");
    if (!synced) {
      return;
    }
    acts_.wait(acts_.issue({"all_gather", "param_count", -1, 0}));
    acts_.wait(acts_.issue({"all_gather", "param_shapes", -1, 0}));
    const bool counts = facts_.buffer_groups > 1 && broadcasts_buffers();
    for (std::int64_t group = 0; group < (counts ? 2 : 1); ++group) {
      acts_.wait(acts_.issue({"broadcast", "module_states", -1, group}));
    }
  }

  bool broadcasts_buffers() const {
    return value_.ddp.broadcast_buffers && !has_fault(value_, "buffers_not_synced");
  }

  // E3, E4, E8: the rebuild, the buffers, and whether the next backward reduces.
  void forward(bool sync, bool has_gradients) {
    if (acts_.has_ended()) {
      return;
    }
    if (has_gradients && owed_) {
      acts_.end(Act::What::kFail, value_.ddp.static_graph && recorded_
                                      ? "static_graph_changed"  // K4
                                      : "reduction_unfinished");
      return;
    }
    if (has_gradients && rebuild_due_) {
      acts_.meet_in("broadcast", "rebuild_order");
      acts_.meet_in("broadcast", "rebuild_sizes");
      rebuild_due_ = false;
      rebuilt_ = true;
    }
    if (buffers_due_ && broadcasts_buffers() && facts_.buffer_groups > 0) {  // J1
      std::vector<Handle> handles;
      for (std::int64_t group = 0; group < facts_.buffer_groups; ++group) {
        handles.push_back(
            acts_.issue({"broadcast", "buffers", step_, group, group == 0 ? late_ : 0}));
      }
      for (const Handle& handle : handles) {
        acts_.wait(handle);
      }
    }
    buffers_due_ = sync && has_gradients;  // J4
    armed_ = armed_ || buffers_due_;
    if (buffers_due_) {
      missing_.clear();
    }
  }

  std::vector<std::string> without_gradient(std::int64_t micro) const {
    std::vector<std::string> names = left_out(value_, rank_, step_, micro);
    names.insert(names.end(), frozen_.begin(), frozen_.end());
    for (const FaultSpec& fault : value_.faults) {
      if (fault.kind == "replaced_parameter" && covers(fault.ranks, rank_) &&
          (fault.steps.empty() ||
           *std::min_element(fault.steps.begin(), fault.steps.end()) <= step_)) {
        names.push_back(fault.parameter);
      }
    }
    const auto is_unknown = [&](const std::string& name) {
      return std::find(facts_.trained.begin(), facts_.trained.end(), name) == facts_.trained.end();
    };
    names.erase(std::remove_if(names.begin(), names.end(), is_unknown), names.end());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }

  // F1: hooks of a backward that no forward armed do nothing.
  void backward(std::int64_t micro) {
    if (!armed_ || acts_.has_ended()) {
      return;
    }
    const bool is_static = value_.ddp.static_graph;
    const std::vector<std::string> without = without_gradient(micro);
    if (is_static && !recorded_) {  // L2, L3
      recorded_ = true;
      first_without_ = without;
      reduce(true);
      return;
    }
    std::vector<std::string> lost = without;
    if (is_static) {
      lost.clear();
      std::set_difference(without.begin(), without.end(), first_without_.begin(),
                          first_without_.end(), std::back_inserter(lost));
      const bool more = !std::includes(without.begin(), without.end(), first_without_.begin(),
                                       first_without_.end());
      if (more) {
        // L5, K3. Whether a bucket is launched before it is noticed depends on the order of
        // gradients; with others that go on that decides where they wait.
        if (value_.world.ranks > 1) {
          acts_.leave_open();
        }
        acts_.end(Act::What::kFail, "static_graph_changed");
      }
    } else if (value_.ddp.find_unused_parameters) {
      lost.clear();  // I6
    }
    if (!lost.empty()) {
      // F5: the bucket of the first that is lost is never launched. Which one that is depends on
      // the order of gradients; those before it are launched, and nobody waits for them here.
      missing_ = lost;
      owed_ = lost.size() < facts_.trained.size();
      return;
    }
    reduce(false);
    rebuild_due_ = !rebuilt_ && (is_static || !value_.ddp.find_unused_parameters);  // D1, D6
  }

  // F5, F6, L3.
  void reduce(bool map_first) {
    const bool maps = map_first || (value_.ddp.find_unused_parameters && !value_.ddp.static_graph);
    std::vector<Handle> handles;
    Handle map;
    if (map_first) {
      map = acts_.issue({"all_reduce", "used_map", step_, 0});
    }
    const std::int64_t count = rebuilt_ ? facts_.later_buckets : facts_.first_buckets;
    for (std::int64_t bucket = 0; bucket < count; ++bucket) {
      handles.push_back(acts_.issue({"all_reduce", "bucket", step_, bucket}));
      if (makes("hook_raises")) {
        acts_.end(Act::What::kFail, "script");
      }
    }
    if (maps && !map_first) {
      map = acts_.issue({"all_reduce", "used_map", step_, 0});
    }
    for (const Handle& handle : handles) {
      acts_.wait(handle);
      if (makes("hook_result")) {
        acts_.end(Act::What::kFail, "hook_result_mismatch");
      }
    }
    if (maps) {
      acts_.wait(map);
    }
    armed_ = owed_ = false;
  }

  // Whether the rank makes this mistake in this step.
  bool makes(const char* kind) const {
    return std::any_of(value_.faults.begin(), value_.faults.end(), [&](const FaultSpec& fault) {
      return fault.kind == kind && covers(fault.ranks, rank_) && covers(fault.steps, step_);
    });
  }

  // --- the training loop ----------------------------------------------------------------------

  bool does(bool (*what)(const AtSpec&)) const {
    return std::any_of(value_.at.begin(), value_.at.end(), [&](const AtSpec& at) {
      return what(at) && covers(at.ranks, rank_) && covers(at.steps, step_);
    });
  }

  // What an event does besides changing numbers.
  void disturb(const AtSpec& at, std::size_t index) {
    if (at.stall) {
      acts_.end(Act::What::kStand);
    }
    if (!at.raise.empty() && !at.retry) {
      acts_.end(Act::What::kFail, "script");
    }
    // Retrying what issued nothing is as if it had not been tried.
    if (at.retry &&
        (at.when != "before_forward" || !at.site.empty() || at.micro_batch.value_or(0) != 0)) {
      acts_.leave_open();
    }
    leaves_ = leaves_ || at.leave;
    skips_ = skips_ || at.skip_step;
    if (!at.collective.empty()) {
      const auto first = std::find_if(value_.at.begin(), value_.at.end(),
                                      [&](const AtSpec& other) { return same_action(at, other); });
      const bool is_barrier = at.collective == "barrier";
      const Issued issued{at.collective, is_barrier ? "barrier" : "script", step_,
                          first - value_.at.begin()};
      if (at.site.empty()) {
        acts_.wait(acts_.issue(issued));
      } else {
        acts_.meet_at_once(issued);
      }
    }
    for (std::int64_t i = 0; i < at.evaluate && at.evaluate_through == "wrapper"; ++i) {
      forward(true, at.evaluate_with_gradients);
    }
    late_ = at.add_buffer > 0 && facts_.buffer_groups > 0 ? at.add_buffer : late_;
    if (!at.sync_buffers.empty()) {
      for (std::int64_t i = 0; i < facts_.num_buffers; ++i) {
        const bool adds = at.sync_buffers == "mean" && i % 3 != 2;  // the third is a counter
        acts_.wait(acts_.issue({adds ? "all_reduce" : "broadcast", "script", step_,
                                static_cast<std::int64_t>(index)}));
      }
    }
    // The forward has recorded it already.
    if (!at.freeze.empty() && at.when == "after_forward") {
      acts_.leave_open();
    }
    for (const std::string& name : at.freeze) {
      for (const std::string& parameter : parameters_of(value_.model, name)) {
        frozen_.insert(parameter);
      }
    }
  }

  void run_events(const char* when, std::int64_t micro) {
    for (std::size_t i = 0; i < value_.at.size(); ++i) {
      const AtSpec& at = value_.at[i];
      const bool here = at.site.empty() && at.when == when && covers(at.ranks, rank_) &&
                        covers(at.steps, step_) &&
                        (micro < 0 || at.micro_batch.value_or(0) == micro);
      if (here && !at.is_routing() && !leaves_) {
        disturb(at, i);
      }
    }
  }

  bool syncs(std::int64_t micro, std::int64_t num_micro) const {
    const bool early = makes("sync_before_last_micro_batch");
    return early ? micro + 2 == num_micro : micro + 1 == num_micro;
  }

  void run_step() {
    if (does([](const AtSpec& at) { return at.reload; })) {
      construct();  // before it enters the step
    }
    acts_.enter_step(step_);
    for (const FaultSpec& fault : value_.faults) {
      if (is_process_fault(fault.kind) && site_of(fault).empty() && covers(fault.ranks, rank_) &&
          covers(fault.steps, step_)) {
        acts_.fail_process(fault);
      }
    }
    skips_ = false;
    const bool bypasses = does([](const AtSpec& at) { return at.bypass; });
    const bool detaches = does([](const AtSpec& at) { return at.detach; });
    if (does([](const AtSpec& at) { return at.ascend > 0.0; })) {
      forward(false, true);
    }
    const std::int64_t num_micro = micro_batches_of(value_, rank_, step_);
    for (std::int64_t micro = 0; micro < num_micro && !skips_ && !leaves_; ++micro) {
      run_events("before_forward", micro);
      if (skips_ || leaves_) {
        break;
      }
      if (!bypasses) {
        forward(syncs(micro, num_micro), true);
      }
      run_events("after_forward", micro);
      if (skips_) {
        break;
      }
      if (!detaches) {
        backward(micro);
      }
      if (!leaves_) {
        run_events("after_backward", micro);
      }
    }
    if (!skips_ && !leaves_) {
      run_events("after_step", -1);
    }
    if (leaves_) {
      acts_.end(Act::What::kLeave);
    }
  }

  const Case& value_;
  const Settled& facts_;
  std::int64_t rank_;
  ActWriter acts_;
  std::int64_t step_ = -1;
  bool armed_ = false, owed_ = false, rebuild_due_ = false, rebuilt_ = false;
  bool recorded_ = false;  // the static graph
  bool buffers_due_ = true, leaves_ = false, skips_ = false;
  std::int64_t late_ = 0;  // elements of buffers that were registered later
  std::set<std::string> frozen_;
  std::vector<std::string> first_without_, missing_;
};

}  // namespace

std::optional<RankActs> acts_of(const Case& value, std::int64_t rank) {
  const std::optional<Settled> facts = settle(value);
  if (!facts || value.ddp.join != "off" || !reduces_in_backward(value.ddp) ||
      uses_sync_batch_norm(value.model)) {
    return std::nullopt;
  }
  return RankScript(value, *facts, rank).run();
}

}  // namespace lockstep::harness::fuzz
