// SPDX-License-Identifier: Apache-2.0
// Facts of a case, and of its program, that need neither samples nor tensors.
#include "harness/case_facts.h"

#include <algorithm>
#include <tuple>

#include "harness/program.h"

namespace lockstep::harness {

std::vector<ProcessSpec> processes_of(const Case& value) {
  std::vector<ProcessSpec> processes = value.launch.processes;
  if (processes.empty()) {
    processes.resize(static_cast<std::size_t>(value.world.ranks));
    for (std::size_t rank = 0; rank < processes.size(); ++rank) {
      processes[rank].rank = static_cast<std::int64_t>(rank);
    }
  }
  for (ProcessSpec& process : processes) {
    process.world_size = process.world_size == 0 ? value.world.ranks : process.world_size;
    if (process.interface.empty()) {
      process.interface = value.launch.interface;
    }
  }
  return processes;
}

std::int64_t given_steps(const TrainSpec& train, std::int64_t rank) {
  return train.steps_of_rank.empty() ? train.steps
                                     : train.steps_of_rank[static_cast<std::size_t>(rank)];
}

bool all_ranks_do(const Case& value, const AtSpec& at, std::int64_t step) {
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    const bool does = std::any_of(value.at.begin(), value.at.end(), [&](const AtSpec& other) {
      return same_action(at, other) && covers(other.ranks, rank) && covers(other.steps, step);
    });
    if (!does) {
      return false;
    }
  }
  return true;
}

bool same_action(const AtSpec& a, const AtSpec& b) {
  const auto action = [](const AtSpec& at) {
    return std::tie(at.micro_batch, at.forward, at.when, at.site, at.bucket, at.from_ms, at.skip,
                    at.exit_after, at.mute, at.without_loss, at.samples, at.micro_batches,
                    at.freeze, at.unfreeze, at.lr, at.raise, at.retry, at.stall, at.leave,
                    at.skip_step, at.detach, at.sleep_ms, at.collective, at.collective_numel,
                    at.evaluate, at.evaluate_through, at.evaluate_with_gradients, at.reload,
                    at.add_buffer, at.bypass, at.copy_gradients, at.sync_buffers, at.scale_buffers,
                    at.keep_gradients, at.ascend);
  };
  return action(a) == action(b);
}

std::string why_no_serial(const Case& value) {
  if (uses_batch_norm(value.model)) {
    return "a model with batch_norm";
  }
  if (uses_dropout(value.model)) {
    return "a model with dropout";
  }
  if (uses_all_to_all(value.model)) {
    return "a model with all_to_all";
  }
  if (!uses_sync_batch_norm(value.model)) {
    return "";
  }
  if (value.train.micro_batches > 1 || value.train.forwards_per_backward > 1) {
    return "sync_batch_norm with a batch in several forwards";
  }
  for (const AtSpec& at : value.at) {
    for (std::int64_t step = 0; at.is_routing() && step < value.train.steps; ++step) {
      if (covers(at.steps, step) && !all_ranks_do(value, at, step)) {
        return "sync_batch_norm with ranks on different routes";
      }
    }
  }
  return "";
}

bool is_one_batch(const Case& value) {
  return value.world.ranks == 1 && value.train.micro_batches == 1 &&
         value.train.forwards_per_backward == 1 && sparse_parameters(value.model).empty();
}

std::vector<std::int64_t> steps_by_rank(const Case& value) {
  std::vector<std::int64_t> steps;
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    std::int64_t own = given_steps(value.train, rank);
    for (const AtSpec& at : value.at) {
      if (value.ddp.join != "off" && at.leave && covers(at.ranks, rank)) {
        const std::int64_t first =
            at.steps.empty() ? 0 : *std::min_element(at.steps.begin(), at.steps.end());
        own = std::min(own, first + (at.when == "after_step" ? 1 : 0));
      }
    }
    steps.push_back(own);
  }
  return steps;
}

}  // namespace lockstep::harness
