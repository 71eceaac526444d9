// SPDX-License-Identifier: Apache-2.0
// How ranks end that do not all end well, as an expectation.
#include <algorithm>
#include <string>

#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/predict/predict_mistake.h"
#include "harness/fuzz/script_traits.h"
#include "harness/model.h"
#include "harness/model_plan.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {

namespace {

bool any_skip(const Case& value) {
  return any_event(value, [](const AtSpec& at) { return !at.skip.empty(); });
}

void expect_never_ready(const std::vector<std::string>& parameters, std::int64_t rank,
                        ExpectSpec& expect) {
  if (!parameters.empty()) {
    expect.never_ready.push_back({rank, parameters});
  }
}

// Which bucket is the first that cannot be launched depends on the order of gradients.
bool bucket_is_known(const Case& value, const Ends& ends) {
  const bool lost = std::any_of(ends.ranks.begin(), ends.ranks.end(),
                                [](const RankEnd& rank) { return !rank.never_ready.empty(); });
  const std::optional<Settled> facts = settle(value);
  return !lost || (facts && facts->first_buckets == 1 && facts->later_buckets == 1);
}

ExpectWaiting waiting_of(const RankEnd& end, std::int64_t rank, bool with_index) {
  ExpectWaiting waiting;
  waiting.rank = rank;
  waiting.collective = end.waiting->collective;
  waiting.site = end.waiting->site;
  if (end.waiting->step >= 0) waiting.step = end.waiting->step;
  if (with_index && waiting.site == "bucket") waiting.bucket = end.waiting->index;
  return waiting;
}

// F5, K1: the three endings of a reduction that owes gradients.
void explain_lost(const Case& value, const Ends& ends, ExpectSpec& expect) {
  bool lost = false;
  for (std::size_t rank = 0; rank < ends.ranks.size(); ++rank) {
    expect_never_ready(ends.ranks[rank].never_ready, static_cast<std::int64_t>(rank), expect);
    lost = lost || !ends.ranks[rank].never_ready.empty();
  }
  if (!lost || value.world.timeout_ms > 0) {
    return;
  }
  const bool noticed = std::any_of(ends.ranks.begin(), ends.ranks.end(), [](const RankEnd& rank) {
    return rank.error == "reduction_unfinished" || rank.error == "static_graph_changed";
  });
  if (expect.outcome == "deadlock") {
    expect.cause = "unfinished_hang";
  } else if (noticed) {
    expect.cause = "unfinished_error";
  }
  if (any_skip(value) && !value.ddp.static_graph && !expect.cause.empty()) {
    expect.cure = "find_unused_parameters";
  }
}

}  // namespace

ExpectSpec predict_ends(const Case& value, const Ends& ends) {
  const auto any = [&](const char* ending) {
    return std::any_of(ends.ranks.begin(), ends.ranks.end(),
                       [&](const RankEnd& rank) { return rank.ending == ending; });
  };
  ExpectSpec expect;
  expect.oracles = {"ranks", "replay"};
  expect.outcome = any("crashed") ? "crash" : any("waiting") ? "deadlock" : "error";
  const bool with_index = bucket_is_known(value, ends);
  for (std::size_t i = 0; i < ends.ranks.size(); ++i) {
    const RankEnd& end = ends.ranks[i];
    const auto rank = static_cast<std::int64_t>(i);
    ExpectEnd expected;
    expected.ranks = {rank};
    expected.ending = end.ending;
    expected.error = end.error;
    if (end.ending != "finished") expected.step = end.step;
    expect.ends.push_back(std::move(expected));
    if (expect.outcome == "deadlock" && end.waiting) {
      expect.waiting.push_back(waiting_of(end, rank, with_index));
    }
    const char* const decisive = expect.outcome == "crash" ? "crashed" : "failed";
    if (expect.outcome != "deadlock" && end.ending == decisive && !expect.rank) {
      expect.rank = rank;
      expect.step = end.step;
      expect.error = expect.outcome == "error" ? end.error : "";
    }
  }
  explain_lost(value, ends, expect);
  if (ends.wrong_pairing) {
    expect.cause = "wrong_pairing";
  }
  return expect;
}

std::optional<ExpectSpec> predict_drift(const Case& value, std::int64_t step, const Settled& facts,
                                        const std::vector<std::string>& never_ready) {
  // In views, buckets that were launched hold averages, though nobody waited for them.
  const bool views = value.ddp.gradient_as_bucket_view && facts.later_buckets > 1;
  if (value.world.ranks == 1 || views || never_ready.size() >= facts.trained.size()) {
    return std::nullopt;
  }
  ExpectSpec expect = diverged(step, "gradient", "ranks", "unfinished_drift");
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    expect_never_ready(never_ready, rank, expect);
  }
  if (any_skip(value) && !value.ddp.static_graph) {
    expect.cure = "find_unused_parameters";
  }
  return expect;
}

namespace {

ExpectSpec all_fail(const Case& value, const char* error, std::int64_t step) {
  Ends ends;
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    ends.ranks.push_back({"failed", error, step, {}, {}});
  }
  return predict_ends(value, ends);
}

// O4: all raise in the iteration in which the first has no inputs.
std::optional<ExpectSpec> of_early_end(const Case& value, std::int64_t least) {
  ExpectSpec expect = all_fail(value, "join_early_termination", least);
  const std::vector<std::int64_t>& steps = value.train.steps_of_rank;
  for (ExpectEnd& end : expect.ends) {
    const std::int64_t own = steps[static_cast<std::size_t>(end.ranks.front())];
    end.step.reset();
    if (own > least) {
      end.step = least;
      expect.rank = end.ranks.front();
    }
  }
  return expect;
}

std::optional<ExpectSpec> of_join(const Case& value, const Settled& facts) {
  const std::vector<std::int64_t>& steps = value.train.steps_of_rank;
  if (steps.empty() || value.ddp.static_graph || facts.num_buffers > 0 || !value.at.empty()) {
    return std::nullopt;
  }
  const std::int64_t least = *std::min_element(steps.begin(), steps.end());
  if (least == *std::max_element(steps.begin(), steps.end())) {
    return std::nullopt;
  }
  if (value.ddp.join == "throw") {
    return value.faults.empty() ? of_early_end(value, least) : std::nullopt;
  }
  return value.faults.size() == 1 && value.faults.front().kind == "join_divisor"
             ? std::optional(diverged(least, "gradient", "replay", "join_divisor"))
             : std::nullopt;
}

// Whether a later block is one that is recomputed, behind one that requires a gradient.
bool recomputes_twice(const ModelPlan& plan) {
  return std::any_of(plan.blocks.begin(), plan.blocks.end(), [&](const PlannedBlock& block) {
    const PlannedBlock& owner = plan.blocks[static_cast<std::size_t>(block.owner)];
    return block.owner > 0 && owner.name != block.name &&
           owner.spec.checkpoint == Checkpointing::kReentrant;
  });
}

}  // namespace

bool does_nothing_else(const Case& value) {
  return value.faults.empty() && value.at.empty() && value.train.steps_of_rank.empty() &&
         value.ddp.join == "off";
}

std::optional<ExpectSpec> predict_ready_twice(const Case& value) {
  const ModelPlan plan = plan_model(value.model);
  const bool is_chain =
      value.model.kind == "graph" && value.model.forward.empty() && value.model.frozen.empty() &&
      value.model.tied.empty() && plan.findings.empty() &&
      std::all_of(plan.blocks.begin(), plan.blocks.end(), [&](const PlannedBlock& block) {
        return block.spec.kind == BlockKind::kLinear && block.spec.dtype.empty();
      });
  if (!is_chain || !recomputes_twice(plan) || !settles_but_for_its_model(value) ||
      !does_nothing_else(value) || value.ddp.hook != "none" || value.ddp.static_graph ||
      value.ddp.find_unused_parameters || !reduces_in_backward(value.ddp)) {
    return std::nullopt;
  }
  return all_fail(value, "ready_twice", 0);
}

namespace {

// F9: the reduction ends with the first backward, and the second finds nothing armed.
std::optional<ExpectSpec> of_unarmed_backward(const Case& value) {
  return value.train.forwards_per_backward == 1 && does_nothing_else(value)
             ? std::optional(all_fail(value, "unarmed_backward", 0))
             : std::nullopt;
}

// J6: each rank's own statistics, which its first forward saved, give way to rank 0's in the
// second, which checks name; rank 0 waits where that forward compares replicas.
std::optional<ExpectSpec> of_saved_buffer(const Case& value, const Case& single) {
  if (value.train.backwards_per_forward > 1 || value.train.backward_from != "sum" ||
      !overwrites_saved_buffers(value) || !does_nothing_else(value)) {
    return std::nullopt;
  }
  Case raised = single;
  AtSpec at;
  for (std::int64_t rank = 1; rank < value.world.ranks; ++rank) at.ranks.push_back(rank);
  at.steps = {0};
  at.micro_batch = value.train.micro_batches - 1;  // under no_sync buffers are left alone (J4)
  at.when = "after_forward";
  at.raise = "as it would";
  raised.at.push_back(at);
  std::optional<Ends> ends = ends_of(raised);
  for (std::size_t rank = 1; ends && rank < ends->ranks.size(); ++rank) {
    ends->ranks[rank].error = "buffer_changed_while_saved";
  }
  if (!ends) {
    return std::nullopt;
  }
  ExpectSpec expect = predict_ends(value, *ends);
  for (ExpectWaiting& waiting : expect.waiting) {
    waiting.collective = "all_gather";
    waiting.site = "checks";
    waiting.bucket.reset();
  }
  return expect;
}

}  // namespace

std::optional<ExpectSpec> predict_checked(const Case& value) {
  Case unchecked = value;
  unchecked.ddp.checks = "off";
  if (value.train.backwards_per_forward > 1 || value.train.forwards_per_backward > 1) {
    unchecked.train.backwards_per_forward = unchecked.train.forwards_per_backward = 1;
    if (!settle(unchecked) || !reduces_in_backward(value.ddp) || value.ddp.hook != "none" ||
        value.ddp.static_graph) {
      return std::nullopt;
    }
    return value.train.backwards_per_forward > 1 ? of_unarmed_backward(value)
                                                 : of_saved_buffer(value, unchecked);
  }
  const std::optional<Settled> facts = settle(unchecked);
  const bool is_plain = facts && reduces_in_backward(value.ddp) && value.ddp.hook == "none" &&
                        value.ddp.join == "off" && value.train.steps_of_rank.empty() &&
                        value.faults.size() + value.at.size() == 1 && facts->num_buffers == 0;
  if (!is_plain) {
    return std::nullopt;
  }
  if (!value.faults.empty()) {
    const FaultSpec& fault = value.faults.front();
    const bool is_tracked = std::find(facts->trained.begin(), facts->trained.end(),
                                      fault.parameter) != facts->trained.end();
    const std::optional<std::int64_t> step = first_step(value, fault.steps, 0);
    if (fault.kind != "replaced_parameter" || !is_tracked || !are_all(value, fault.ranks) ||
        !step) {
      return std::nullopt;
    }
    ExpectSpec expect = all_fail(value, "parameter_replaced", *step);
    expect.message = fault.by == "round_trip"
                         ? "was converted to another dtype or device after the module was wrapped"
                         : "is another tensor than when the module was wrapped";
    return expect;
  }
  const std::optional<ExpectSpec> drift =
      value.at.front().lr ? predict_event(unchecked, value.at.front(), *facts) : std::nullopt;
  if (!drift || drift->outcome != "diverged" || drift->oracle != "ranks" || !drift->step ||
      *drift->step + 1 >= value.train.steps) {
    return std::nullopt;
  }
  return all_fail(value, "replicas_differ", *drift->step + 1);
}

std::optional<ExpectSpec> predict_local_hook(const Case& value, const Settled& facts) {
  if (!does_nothing_else(value) || facts.num_buffers > 0 || !has_mistake(value)) {
    return std::nullopt;
  }
  ExpectSpec expect = diverged(value.ddp.hook == "noop" ? 0 : 1, "gradient", "ranks");
  expect.oracles = {"ranks"};
  return expect;
}

std::optional<ExpectSpec> predict_apart(const Case& value, const Settled& facts) {
  if (value.ddp.join != "off") {
    return of_join(value, facts);
  }
  if (value.faults.size() != 1 || !value.at.empty()) {
    return std::nullopt;
  }
  const FaultSpec& fault = value.faults.front();
  const std::string& kind = fault.kind;
  const bool all = are_all(value, fault.ranks);
  if (!reduces_in_backward(value.ddp)) {
    return predict_fault(value, fault, facts);
  }
  if (value.world.ranks == 1) {
    return std::nullopt;
  }
  const bool is_trained =
      std::find(facts.trained.begin(), facts.trained.end(), fault.parameter) != facts.trained.end();
  const bool differs = kind == "other_dtype" || kind == "other_shape" ||
                       (kind == "forgotten_parameter" && facts.trained.size() > 1);
  if (differs && !all && is_trained && value.ddp.init_sync) {
    return all_fail(value, "model_mismatch", -1);  // B1, B2
  }
  if (kind == "local_batch_norm") {
    if (!all) {
      ExpectSpec expect = all_fail(value, "desync", 0);
      expect.cause = "wrong_pairing";
      return expect;
    }
    ExpectSpec expect = diverged(0, "forward", "replay", "local_statistics");
    expect.rank = 0;
    return expect;
  }
  return std::nullopt;
}

}  // namespace lockstep::harness::fuzz
