// SPDX-License-Identifier: Apache-2.0
// Facts of a case, and of its program, that need neither samples nor tensors.
#include "harness/case_facts.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "harness/fault_kinds.h"
#include "harness/program.h"

namespace lockstep::harness {

namespace {

/// Every step that some [[at]] names, and the first that none does: at the others it is as there.
std::vector<std::int64_t> telling_steps(const Case& value) {
  std::set<std::int64_t> steps;
  for (const AtSpec& at : value.at) {
    steps.insert(at.steps.begin(), at.steps.end());
  }
  std::int64_t other = 0;
  while (steps.count(other) != 0) {
    ++other;
  }
  if (other < value.train.steps) {
    steps.insert(other);
  }
  return {steps.begin(), steps.end()};
}

}  // namespace

std::vector<HostSpec> hosts_of(const Case& value) {
  if (!value.launch.hosts.empty()) {
    return value.launch.hosts;
  }
  HostSpec host;
  host.name = "host";
  host.interfaces = {{"lo", "127.0.0.1"}};
  host.names = {{"host", "127.0.0.1"}};
  return {host};
}

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
  std::set<std::int64_t> ranks;
  for (const AtSpec& other : value.at) {
    if (covers(other.steps, step) && same_action(at, other)) {
      if (other.ranks.empty()) {
        return true;
      }
      ranks.insert(other.ranks.begin(), other.ranks.end());
    }
  }
  return static_cast<std::int64_t>(ranks.size()) >= value.world.ranks;
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
  const std::vector<std::int64_t> steps = telling_steps(value);
  for (const AtSpec& at : value.at) {
    for (const std::int64_t step : steps) {
      if (at.is_routing() && covers(at.steps, step) && !all_ranks_do(value, at, step)) {
        return "sync_batch_norm with ranks on different routes";
      }
    }
  }
  return "";
}

bool is_one_batch(const Case& value) {
  return value.world.ranks == 1 && value.train.micro_batches == 1 &&
         value.train.forwards_per_backward == 1 && value.train.backwards_per_forward == 1 &&
         sparse_parameters(value.model).empty();
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

const AtSpec* evaluation_before_leaving(const Case& value, const AtSpec& leave) {
  if (value.ddp.join == "off" || leave.when != "before_forward") {
    return nullptr;
  }
  const std::int64_t step =
      leave.steps.empty() ? 0 : *std::min_element(leave.steps.begin(), leave.steps.end());
  for (const AtSpec& at : value.at) {
    if (&at == &leave) break;  // what comes later is not come to
    const bool evaluates = at.evaluate > 0 && at.evaluate_through == "wrapper" &&
                           at.when == leave.when && at.micro_batch.value_or(0) == 0 &&
                           covers(at.steps, step);
    for (std::int64_t rank = 0; evaluates && rank < value.world.ranks; ++rank) {
      if (covers(at.ranks, rank) && covers(leave.ranks, rank)) return &at;
    }
  }
  return nullptr;
}

bool runs_on(const Case& value, const std::string& backend) {
  const bool ends_a_process =
      std::any_of(value.faults.begin(), value.faults.end(),
                  [](const FaultSpec& fault) { return is_process_fault(fault.kind); });
  if (backend == "sim") {
    return true;
  }
  // Machines are made up, and PyTorch's own transport has a rendezvous of its own.
  if (value.launch.is_asked_for() && (!value.launch.hosts.empty() || backend == "c10d_gloo")) {
    return false;
  }
  if (backend == "nccl" && (ends_a_process || (value.world.ranks > 2 && !value.data.exact))) {
    return false;
  }
  return !value.world.simulator_only;
}

}  // namespace lockstep::harness
