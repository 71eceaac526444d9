// SPDX-License-Identifier: Apache-2.0
// Computes a rank's forward and backward again and looks where the gradients went.
#include "harness/judge/lost_gradients.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "harness/graph_model.h"
#include "harness/model_plan.h"
#include "harness/reference/reference.h"

namespace lockstep::harness {
namespace {

// One block in one forward, and whether gradients came by in backward.
struct Flow {
  std::int64_t pass = 0;  ///< which forward
  std::int64_t stage = 0, block = 0;
  bool output_requires_grad = false;
  std::shared_ptr<bool> into_output = std::make_shared<bool>(false);
  std::shared_ptr<bool> out_of_input = std::make_shared<bool>(false);
};

void watch_gradient(const at::Tensor& tensor, const std::shared_ptr<bool>& arrived) {
  if (tensor.requires_grad()) {
    tensor.register_hook([arrived](const at::Tensor&) { *arrived = true; });
  }
}

// One micro-batch of one rank, computed again.
class Recomputation {
 public:
  Recomputation(const Program& subject, const RankProgram& of_rank, const NeverReady& place)
      : plan_(plan_model(subject.value.model)),
        alone_{subject.value, subject.role, {of_rank}, subject.data} {
    const Case& value = subject.value;
    model_ =
        std::make_shared<GraphModel>(value.model, value.data.exact, value.seed, of_rank.init_rank);
    const auto step = static_cast<std::size_t>(place.step);
    StepPlan kept;
    kept.step = place.step;
    kept.micro_batches = {
        of_rank.steps.at(step).micro_batches.at(static_cast<std::size_t>(place.micro_batch))};
    route_ = kept.micro_batches.front().parts.back().route;
    for (std::size_t at = 0; at <= step; ++at) {
      for (const std::size_t index : of_rank.steps[at].events) {
        const AtSpec& event = value.at[index];
        if (at < step || event.when == "before_forward") {
          set_requires_grad(event.freeze, false);
          set_requires_grad(event.unfreeze, true);
        }
        if (at == step && event.detach) {
          kept.events.push_back(index);
          has_backward_ = false;
        }
      }
    }
    alone_.ranks.front().steps = {std::move(kept)};
    model_->watch_blocks([this](std::int64_t stage, std::int64_t block, const at::Tensor& input,
                                const at::Tensor& output) {
      Flow flow;
      if (!flows_.empty()) {
        const Flow& last = flows_.back();
        const bool goes_on =
            stage > last.stage || (stage == last.stage && block != flows_.front().block);
        flow.pass = last.pass + (goes_on ? 0 : 1);
      }
      flow.stage = stage;
      flow.block = block;
      flow.output_requires_grad = output.requires_grad();
      watch_gradient(input, flow.out_of_input);
      watch_gradient(output, flow.into_output);
      flows_.push_back(std::move(flow));
    });
    run_alone(alone_, model_);
  }

  std::string why(const std::string& parameter) const {
    if (!has_backward_) {
      return "no backward ran: the loss depended on no parameter (detach)";
    }
    const auto slots = find_slots(plan_, parameter);
    if (slots.empty()) {
      return "";
    }
    const ParameterSlot& named = plan_.slots[static_cast<std::size_t>(slots.front())];
    if (!model_->named_parameters()[named.name].requires_grad()) {
      return "it no longer requires a gradient: it was frozen after the module was wrapped";
    }
    const Flow* lost = nullptr;
    for (const Flow& flow : flows_) {
      if (!holds(flow.block, named.tensor)) {
        continue;
      }
      if (*flow.into_output) {
        return "";  // the graph is not to blame
      }
      lost = &flow;
    }
    return lost == nullptr ? why_not_run(named.block) : why_lost(*lost);
  }

 private:
  const std::string& name_of(std::int64_t block) const {
    return plan_.blocks[static_cast<std::size_t>(block)].name;
  }
  const BlockSpec& spec_of(std::int64_t block) const {
    return plan_.blocks[static_cast<std::size_t>(block)].spec;
  }

  void set_requires_grad(const std::vector<std::string>& names, bool requires_grad) {
    const auto parameters = model_->named_parameters();
    for (const std::string& name : names) {
      for (const std::int64_t slot : find_slots(plan_, name)) {
        // A tensor of several names is registered under each of them.
        if (const at::Tensor* parameter =
                parameters.find(plan_.slots[static_cast<std::size_t>(slot)].name)) {
          at::Tensor(*parameter).set_requires_grad(requires_grad);
        }
      }
    }
  }

  // Whether the module behind a block has the tensor among its parameters.
  bool holds(std::int64_t block, std::int64_t tensor) const {
    const std::int64_t owner = plan_.blocks[static_cast<std::size_t>(block)].owner;
    return std::any_of(plan_.slots.begin(), plan_.slots.end(), [&](const ParameterSlot& slot) {
      return slot.tensor == tensor &&
             plan_.blocks[static_cast<std::size_t>(slot.block)].owner == owner;
    });
  }

  std::string why_not_run(std::int64_t block) const {
    const bool is_used = std::any_of(
        plan_.stages.begin(), plan_.stages.end(), [&](const std::vector<std::int64_t>& stage) {
          return std::any_of(stage.begin(), stage.end(), [&](std::int64_t other) {
            return plan_.blocks[static_cast<std::size_t>(other)].owner ==
                   plan_.blocks[static_cast<std::size_t>(block)].owner;
          });
        });
    if (!is_used) {
      return fmt::format("block {} is in no stage of forward", name_of(block));
    }
    const bool is_skipped =
        std::find(route_.skip.begin(), route_.skip.end(), name_of(block)) != route_.skip.end();
    if (!is_skipped && !route_.exit_after.empty()) {
      return fmt::format("block {} was not run: forward ended after block {}", name_of(block),
                         route_.exit_after);
    }
    return fmt::format("block {} was not run", name_of(block));
  }

  // The blocks of the next stage that ran after `flow`.
  std::vector<const Flow*> consumers(const Flow& flow) const {
    std::vector<const Flow*> next;
    for (const Flow& other : flows_) {
      if (other.pass == flow.pass && other.stage > flow.stage &&
          (next.empty() || other.stage == next.front()->stage)) {
        next.push_back(&other);
      }
    }
    return next;
  }

  // Follows a block's output to the place where its gradient was lost.
  std::string why_lost(const Flow& flow) const {
    const std::string block = fmt::format("block {}", name_of(flow.block));
    if (!flow.output_requires_grad) {
      return block + ": it ran without a graph";
    }
    const Flow* at = &flow;
    while (true) {
      const std::vector<const Flow*> next = consumers(*at);
      if (next.empty()) {
        return at == &flow ? block + ": its output was not used by the loss"
                           : fmt::format(
                                 "{}: its output led to block {} only, which was not used "
                                 "by the loss",
                                 block, name_of(at->block));
      }
      const auto cut = std::find_if(next.begin(), next.end(), [](const Flow* other) {
        return !other->output_requires_grad || (*other->into_output && !*other->out_of_input);
      });
      if (cut != next.end()) {
        const Flow& blocker = **cut;
        const std::vector<const Flow*> after = consumers(blocker);
        return fmt::format("{}: its output went through block {} ({}){}", block,
                           name_of(blocker.block), to_string(spec_of(blocker.block).kind),
                           after.empty() ? ", which hands no gradient back"
                                         : " before block " + name_of(after.front()->block));
      }
      at = next.front();
    }
  }

  ModelPlan plan_;
  Program alone_;
  std::shared_ptr<GraphModel> model_;
  Route route_;
  std::vector<Flow> flows_;
  bool has_backward_ = true;
};

bool is_replaced(const Case& value, std::int64_t rank, const std::string& parameter) {
  return std::any_of(value.faults.begin(), value.faults.end(), [&](const FaultSpec& fault) {
    return fault.kind == "replaced_parameter" && fault.parameter == parameter &&
           covers(fault.ranks, rank);
  });
}

// What decides about a recomputation; ranks that have it in common share one.
using Key = std::tuple<std::int64_t, std::int64_t, std::vector<std::string>, std::string,
                       std::vector<std::size_t>>;

Key key_of(const RankProgram& of_rank, const NeverReady& place) {
  std::vector<std::size_t> events;
  const auto step = static_cast<std::size_t>(place.step);
  for (std::size_t at = 0; at <= step; ++at) {
    const auto& of_step = of_rank.steps.at(at).events;
    events.insert(events.end(), of_step.begin(), of_step.end());
  }
  const auto& parts =
      of_rank.steps[step].micro_batches.at(static_cast<std::size_t>(place.micro_batch)).parts;
  std::vector<std::string> skip;
  for (const Part& part : parts) {
    skip.insert(skip.end(), part.route.skip.begin(), part.route.skip.end());
    skip.emplace_back();
  }
  return {place.step, place.micro_batch, std::move(skip), parts.back().route.exit_after,
          std::move(events)};
}

}  // namespace

void explain_never_ready(const Program& subject, std::vector<RankState>& ranks) {
  std::map<Key, std::unique_ptr<Recomputation>> done;
  for (RankState& state : ranks) {
    const RankProgram& of_rank = subject.ranks[static_cast<std::size_t>(state.rank)];
    for (NeverReady& entry : state.never_ready) {
      if (!entry.why.empty() || entry.step < 0) {
        continue;
      }
      try {
        auto& again = done[key_of(of_rank, entry)];
        if (again == nullptr) {
          again = std::make_unique<Recomputation>(subject, of_rank, entry);
        }
        entry.why = again->why(entry.parameter);
      } catch (const std::exception&) {
        // What fails on the rank may fail here as well; then only the general reason is left.
      }
      if (is_replaced(subject.value, state.rank, entry.parameter)) {
        entry.why =
            "it was replaced after the module was wrapped: the wrapper waits for the old one";
      } else if (entry.why.empty()) {
        entry.why = fmt::format("the backward of step {} did not come to it", entry.step);
      }
    }
  }
}

}  // namespace lockstep::harness
