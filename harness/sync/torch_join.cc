// SPDX-License-Identifier: Apache-2.0
// Who is active, as PyTorch's join context finds out.
#include "harness/sync/torch_join.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <utility>

#include "core/error.h"
#include "harness/sync/communicator_process_group.h"

namespace lockstep::harness {

TorchJoin::TorchJoin(std::string mode, Communicator& communicator)
    : mode_(std::move(mode)), communicator_(communicator) {}

at::Tensor TorchJoin::sum(CallSite site, float value) {
  at::Tensor tensor = at::full({1}, value, at::kFloat);
  communicator_.all_reduce(tensor, ReduceOp::kSum, {site, -1, -1})->wait();
  return tensor;
}

c10::intrusive_ptr<c10d::Work> TorchJoin::notify() {
  const at::Tensor one = at::ones({1});
  auto work = c10::make_intrusive<CommunicatorWork>(
      communicator_.all_reduce(one, ReduceOp::kSum, {CallSite::kJoinActive, -1, -1}),
      std::vector<at::Tensor>{one});
  if (mode_ == "throw" && sum(CallSite::kJoinEarlyEnd, 0).item<float>() != 0) {
    throw DdpError("join_early_termination",
                   fmt::format("rank {}: some rank has exhausted its inputs, which ends the "
                               "training of all ranks",
                               communicator_.rank()));
  }
  return work;
}

void TorchJoin::announce(bool synchronizes) {
  // Nobody here waits for it: the transport keeps the tensor.
  communicator_.all_reduce(at::full({1}, synchronizes ? 1.0F : 0.0F, at::kFloat), ReduceOp::kSum,
                           {CallSite::kJoinPlan, -1, -1});
}

bool TorchJoin::anyone_synchronizes() { return sum(CallSite::kJoinPlan, 0).item<float>() != 0; }

std::int64_t TorchJoin::highest_rank(bool is_candidate) {
  const at::Tensor rank =
      at::full({1}, is_candidate ? communicator_.rank() : std::int64_t{-1}, at::kLong);
  communicator_.all_reduce(rank, ReduceOp::kMax, {CallSite::kJoinSource, -1, -1})->wait();
  return rank.item<std::int64_t>();
}

void TorchJoin::run(const std::function<void()>& loop, const TorchShadow& shadow) {
  loop();
  if (!is_on()) {
    return;
  }
  bool is_last_joiner = true;
  while (sum(CallSite::kJoinActive, 0).item<float>() != 0) {
    if (mode_ == "throw") {
      sum(CallSite::kJoinEarlyEnd, 1);
      throw DdpError("join_early_termination",
                     fmt::format("rank {} has exhausted all its inputs", communicator_.rank()));
    }
    shadow.iteration();
    is_last_joiner = false;
  }
  shadow.finish(highest_rank(is_last_joiner));
}

}  // namespace lockstep::harness
