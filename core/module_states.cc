// SPDX-License-Identifier: Apache-2.0
// Coalesced broadcasts.
#include "core/module_states.h"

#include <torch/types.h>

#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "core/bucket_plan.h"

namespace lockstep {
namespace {

struct InFlight {
  std::vector<std::int64_t> indices;
  at::Tensor flat;
  std::unique_ptr<Work> work;
};

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (!a.device().is_cpu() || !a.is_contiguous() || !b.is_contiguous()) {
    return false;
  }
  return std::memcmp(a.data_ptr(), b.data_ptr(),
                     static_cast<std::size_t>(a.numel()) * a.element_size()) == 0;
}

void finish(InFlight& broadcast, const std::vector<at::Tensor>& tensors, bool is_root) {
  broadcast.work->wait();
  if (is_root) {
    return;
  }
  std::int64_t offset = 0;
  for (const std::int64_t index : broadcast.indices) {
    const at::Tensor& tensor = tensors[static_cast<std::size_t>(index)];
    const at::Tensor received =
        broadcast.flat.narrow(0, offset, tensor.numel()).view(tensor.sizes());
    if (!same_bytes(tensor, received)) {
      tensor.copy_(received);
    }
    offset += tensor.numel();
  }
}

}  // namespace

void broadcast_coalesced(Communicator& communicator, const std::vector<at::Tensor>& tensors,
                         const BroadcastOptions& options) {
  constexpr std::size_t kInFlightMax = 2;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> filled;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) {
      filled.push_back(tensor);
    }
  }
  const bool is_root = communicator.rank() == options.root;
  std::deque<InFlight> in_flight;
  std::int64_t position = 0;
  for (std::vector<std::int64_t>& indices : assign_buckets(filled, {options.cap_bytes})) {
    if (in_flight.size() == kInFlightMax) {
      finish(in_flight.front(), filled, is_root);
      in_flight.pop_front();
    }
    std::vector<at::Tensor> pieces;
    pieces.reserve(indices.size());
    for (const std::int64_t index : indices) {
      pieces.push_back(filled[static_cast<std::size_t>(index)].reshape({-1}));
    }
    InFlight broadcast;
    broadcast.indices = std::move(indices);
    broadcast.flat = at::cat(pieces).detach();
    const at::Tensor real =
        broadcast.flat.is_complex() ? at::view_as_real(broadcast.flat) : broadcast.flat;
    broadcast.work =
        communicator.broadcast(real, options.root, {options.site, options.step, position++});
    in_flight.push_back(std::move(broadcast));
  }
  for (InFlight& broadcast : in_flight) {
    finish(broadcast, filled, is_root);
  }
}

}  // namespace lockstep
