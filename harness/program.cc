// SPDX-License-Identifier: Apache-2.0
// Compiles a case into what each rank does, for the subject and for both references.
#include "harness/program.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "core/check.h"
#include "core/distributed_sampler.h"
#include "harness/case_facts.h"
#include "harness/dataset.h"
#include "harness/step_parts.h"

namespace lockstep::harness {

Route route_at(const Case& value, std::int64_t rank, std::int64_t step, std::int64_t micro,
               std::int64_t forward) {
  Route route;
  for (const AtSpec& at : value.at) {
    if (!at.is_routing() || !covers(at.ranks, rank) || !covers(at.steps, step) ||
        at.micro_batch.value_or(micro) != micro || at.forward.value_or(forward) != forward) {
      continue;
    }
    route.skip.insert(route.skip.end(), at.skip.begin(), at.skip.end());
    route.without_loss.insert(route.without_loss.end(), at.without_loss.begin(),
                              at.without_loss.end());
    if (!at.exit_after.empty()) {
      route.exit_after = at.exit_after;
    }
    route.mute.insert(route.mute.end(), at.mute.begin(), at.mute.end());
  }
  for (std::vector<std::string>* names : {&route.skip, &route.mute, &route.without_loss}) {
    std::sort(names->begin(), names->end());
    names->erase(std::unique(names->begin(), names->end()), names->end());
  }
  return route;
}

std::int64_t samples_in(const Case& value, std::int64_t rank, std::int64_t step,
                        std::int64_t micro) {
  std::int64_t count = value.train.batch_per_rank / value.train.micro_batches;
  for (const AtSpec& at : value.at) {
    if (at.samples && covers(at.ranks, rank) && covers(at.steps, step) &&
        at.micro_batch.value_or(micro) == micro) {
      count = *at.samples;
    }
  }
  return count;
}

namespace {

// What one rank decides at or before the place where ranks agree, all do.
bool is_agreed(const Case& value, const AtSpec& at) {
  constexpr const char* kPlaces[] = {"before_forward", "after_forward", "after_backward"};
  const auto place = [&](const std::string& when) {
    return std::find(std::begin(kPlaces), std::end(kPlaces), when) - std::begin(kPlaces);
  };
  return at.skip_step && value.train.agree != "never" && place(at.when) <= place(value.train.agree);
}

// References follow what all ranks agreed to do; an exception, a pause or an extra collective has
// no meaning for one process.
bool is_known_to_references(const Case& value, const AtSpec& at, std::int64_t step) {
  return (all_ranks_do(value, at, step) || is_agreed(value, at)) && at.raise.empty() &&
         at.sleep_ms == 0 && at.collective.empty() && !at.reload && !at.stall &&
         at.add_buffer == 0 && at.from_ms == 0 && !at.bypass && at.scale_buffers == 1.0 &&
         !at.keep_gradients && at.ascend == 0.0;
}

bool has_fault(const Case& value, const std::string& kind, std::int64_t rank, std::int64_t step) {
  return std::any_of(value.faults.begin(), value.faults.end(), [&](const FaultSpec& fault) {
    return fault.kind == kind && covers(fault.ranks, rank) && covers(fault.steps, step);
  });
}

// A window of another length is agreed on by all ranks, or it is a mistake of those that have it.
std::int64_t micro_batches_in(const Case& value, Role role, std::int64_t rank, std::int64_t step) {
  std::int64_t count = value.train.micro_batches;
  for (const AtSpec& at : value.at) {
    if (at.micro_batches && covers(at.ranks, rank) && covers(at.steps, step) &&
        (role == Role::kSubject || all_ranks_do(value, at, step))) {
      count = *at.micro_batches;
    }
  }
  return count;
}

std::int64_t samples_in_window(const Case& value, Role role, std::int64_t rank, std::int64_t step) {
  std::int64_t sum = 0;
  for (std::int64_t micro = 0; micro < micro_batches_in(value, role, rank, step); ++micro) {
    sum += samples_in(value, rank, step, micro);
  }
  return sum;
}

// Sample ids of one rank, batch after batch, epoch after epoch. What is left of an epoch after the
// last whole batch is not used.
std::vector<std::vector<std::int64_t>> batches_of_rank(const Case& value, Role role,
                                                       std::int64_t rank) {
  SamplerOptions options;
  options.num_samples = value.data.samples;
  options.world_size = value.world.ranks;
  options.rank = rank;
  options.shuffle = value.data.shuffle;
  options.drop_last = value.data.drop_last;
  options.seed = value.seed;
  if (role == Role::kSubject && has_fault(value, "shuffle_seed", rank, -1)) {
    options.seed += static_cast<std::uint64_t>(rank) + 1;
  }
  const bool one_order = role == Role::kSubject && has_fault(value, "epoch_not_set", rank, -1);
  DistributedSampler sampler(options);
  const std::int64_t batch = value.train.batch_per_rank;
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t epoch = 0; static_cast<std::int64_t>(batches.size()) < value.train.steps;
       ++epoch) {
    sampler.set_epoch(one_order ? 0 : epoch);
    const std::vector<std::int64_t> indices = sampler.indices();
    LOCKSTEP_USAGE(static_cast<std::int64_t>(indices.size()) >= batch,
                   "data.samples = {} gives rank {} only {} samples an epoch, fewer than "
                   "train.batch_per_rank = {}; raise data.samples",
                   value.data.samples, rank, indices.size(), batch);
    for (std::size_t at = 0; at + static_cast<std::size_t>(batch) <= indices.size() &&
                             static_cast<std::int64_t>(batches.size()) < value.train.steps;
         at += static_cast<std::size_t>(batch)) {
      const auto first = indices.begin() + static_cast<std::ptrdiff_t>(at);
      batches.emplace_back(first, first + batch);
    }
  }
  return batches;
}

bool micro_batch_syncs(const TrainSpec& train, bool is_last) {
  return train.sync_on == "every" || (train.sync_on == "last" && is_last);
}

// Which micro-batches the forward arms the reducer for. H1: the flag is read in forward, so a
// no_sync block around backward alone has no effect.
bool subject_syncs(const Case& value, std::int64_t rank, std::int64_t step, std::int64_t micro,
                   std::int64_t num_micro) {
  if (has_fault(value, "sync_before_last_micro_batch", rank, step)) {
    return micro + 2 == num_micro;
  }
  return value.train.no_sync_covers == "backward" ||
         micro_batch_syncs(value.train, micro + 1 == num_micro);
}

bool replay_syncs(const Case& value, bool is_last) {
  return value.train.no_sync_covers == "backward" || value.train.sync_on == "every" || is_last;
}

// A mean over a window of micro-batches is the mean of their means; a sum is their sum.
double loss_scale(const Case& value, std::int64_t num_micro) {
  const TrainSpec& train = value.train;
  const bool mean_of_means = train.reduction == "mean" && train.mean_over == "micro_batch";
  const double scale = mean_of_means ? 1.0 / static_cast<double>(num_micro) : 1.0;
  return train.scale_loss_by_world_size ? scale * static_cast<double>(value.world.ranks) : scale;
}

// Samples that the losses of a rank's step are divided by; 0: each micro-batch by its own. DDP's
// division by the number of ranks is part of a mean over all samples.
double mean_over(const Case& value, Role role, std::int64_t rank, std::int64_t step) {
  if (value.train.mean_over == "window") {
    return static_cast<double>(samples_in_window(value, role, rank, step));
  }
  double sum = 0.0;
  for (std::int64_t each = 0; value.train.mean_over == "all" && each < value.world.ranks; ++each) {
    sum += static_cast<double>(samples_in_window(value, role, each, step));
  }
  return sum / static_cast<double>(value.world.ranks);
}

StepPlan plan_step(const Case& value, Role role, std::int64_t rank, std::int64_t step,
                   const std::vector<std::int64_t>& batch) {
  StepPlan plan;
  plan.step = step;
  const std::int64_t share = value.train.batch_per_rank / value.train.micro_batches;
  const std::int64_t num_micro = micro_batches_in(value, role, rank, step);
  const std::int64_t forwards = value.train.forwards_per_backward;
  const double mean = mean_over(value, role, rank, step);
  const bool as_configured = role == Role::kSubject && has_fault(value, "window_scale", rank, step);
  plan.loss_scale = loss_scale(value, as_configured ? value.train.micro_batches : num_micro);
  for (std::int64_t micro = 0; micro < num_micro; ++micro) {
    const std::int64_t micro_samples = samples_in(value, rank, step, micro);
    MicroBatch micro_batch;
    for (std::int64_t forward = 0; forward < forwards; ++forward) {
      const auto first = batch.begin() + micro * share + forward * (micro_samples / forwards);
      micro_batch.parts.push_back(
          {{first, first + micro_samples / forwards},
           route_at(value, rank, step, micro, forward),
           mean != 0.0 || forwards == 1 ? mean : static_cast<double>(micro_samples)});
    }
    micro_batch.sync = role == Role::kSubject ? subject_syncs(value, rank, step, micro, num_micro)
                                              : replay_syncs(value, micro + 1 == num_micro);
    plan.micro_batches.push_back(std::move(micro_batch));
  }
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    const AtSpec& at = value.at[i];
    const bool subject = role == Role::kSubject;
    const bool is_own = covers(at.ranks, rank) || (!subject && is_agreed(value, at));
    if (!at.is_routing() && is_own && covers(at.steps, step) &&
        (subject || is_known_to_references(value, at, step))) {
      plan.events.push_back(i);
    }
  }
  if (role == Role::kSubject) {
    for (std::size_t i = 0; i < value.faults.size(); ++i) {
      if (covers(value.faults[i].ranks, rank) && covers(value.faults[i].steps, step)) {
        plan.faults.push_back(i);
      }
    }
  }
  return plan;
}

Program compile_ranks(const Case& value, Role role, std::shared_ptr<const Dataset> data) {
  Program program{value, role, {}, data != nullptr ? std::move(data) : draw_data(value)};
  const std::vector<std::int64_t> known_steps = steps_by_rank(value);
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    RankProgram of_rank;
    of_rank.rank = rank;
    const bool subject = role == Role::kSubject;
    of_rank.noise_rank = subject && has_fault(value, "dropout_seed", rank, -1) ? 0 : rank;
    if (subject && has_fault(value, "per_rank_init", rank, -1)) {
      of_rank.init_rank = rank;
    }
    const bool same = subject && has_fault(value, "same_batches", rank, -1);
    const auto batches = batches_of_rank(value, role, same ? 0 : rank);
    // The subject finds out by itself that its script leaves.
    const std::int64_t num_steps =
        subject ? given_steps(value.train, rank) : known_steps[static_cast<std::size_t>(rank)];
    for (std::int64_t step = 0; step < num_steps; ++step) {
      const bool lags = subject && step > 0 && has_fault(value, "mixed_steps", rank, step);
      const auto& batch = batches[static_cast<std::size_t>(lags ? step - 1 : step)];
      of_rank.steps.push_back(plan_step(value, role, rank, step, batch));
    }
    program.ranks.push_back(std::move(of_rank));
  }
  return program;
}

}  // namespace

std::shared_ptr<const Dataset> draw_data(const Case& value) {
  return std::make_shared<const Dataset>(value);
}

Program compile_subject(const Case& value, std::shared_ptr<const Dataset> data) {
  return compile_ranks(value, Role::kSubject, std::move(data));
}

Program compile_replay(const Case& value, std::shared_ptr<const Dataset> data) {
  return compile_ranks(value, Role::kReplay, std::move(data));
}

Program compile_serial(const Case& value, std::shared_ptr<const Dataset> data) {
  const Program ranks = compile_ranks(value, Role::kReplay, std::move(data));
  Program program{value, Role::kSerial, {}, ranks.data};
  RankProgram serial;
  // DDP's average of W local losses is the global loss where that is a mean. A sum over the global
  // batch is W times larger, which `scale_loss_by_world_size` makes up for on the ranks.
  const auto longest = std::max_element(
      ranks.ranks.begin(), ranks.ranks.end(),
      [](const RankProgram& a, const RankProgram& b) { return a.steps.size() < b.steps.size(); });
  for (std::size_t at = 0; at < longest->steps.size(); ++at) {
    StepPlan plan;
    plan.step = longest->steps[at].step;
    plan.events = longest->steps[at].events;
    MicroBatch global;
    // A joined rank counts as a batch of zeros, unless it is not counted.
    std::int64_t num_samples = 0;
    for (const RankProgram& rank : ranks.ranks) {
      if (at >= rank.steps.size()) {
        num_samples += value.ddp.join == "divide_by_active" ? 0 : value.train.batch_per_rank;
        continue;
      }
      num_samples += samples_in_window(value, Role::kReplay, rank.rank, plan.step);
      for (const MicroBatch& micro : rank.steps[at].micro_batches) {
        for (const Part& part : micro.parts) {
          auto same = std::find_if(global.parts.begin(), global.parts.end(),
                                   [&](const Part& p) { return p.route == part.route; });
          if (same == global.parts.end()) {
            global.parts.push_back({{}, part.route, 0});
            same = std::prev(global.parts.end());
          }
          same->samples.insert(same->samples.end(), part.samples.begin(), part.samples.end());
        }
      }
    }
    for (Part& part : global.parts) {
      part.mean_over = static_cast<double>(num_samples);
    }
    plan.micro_batches.push_back(std::move(global));
    serial.steps.push_back(std::move(plan));
  }
  program.ranks.push_back(std::move(serial));
  return program;
}

}  // namespace lockstep::harness
