// SPDX-License-Identifier: Apache-2.0
// Checks and launches of the simulated ranks.
#include "sim/sim_communicator.h"

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "sim/ring_order.h"

namespace lockstep::sim {
namespace {

class SimWork final : public Work {
 public:
  SimWork(CollectiveExchange& exchange, std::int64_t rank, std::int64_t seq)
      : exchange_(exchange), rank_(rank), seq_(seq) {}

  void wait() override { exchange_.wait(rank_, seq_); }

 private:
  CollectiveExchange& exchange_;
  std::int64_t rank_;
  std::int64_t seq_;
};

// Ranks are threads of one process, and collectives take place on the CPU.
void check_place(const at::Tensor& tensor, CollectiveKind kind) {
  LOCKSTEP_USAGE(tensor.device().is_cpu(), "{} of a tensor on {}; the simulator's are on the CPU",
                 to_string(kind), tensor.device().str());
}

// Until an all_gather completes, its output holds this in every byte: a real transport may write
// there at any time, and what lay there before may be anything, but runs must repeat.
constexpr int kNotYetWritten = 0x55;

// An input may be a row of the output.
void spoil(const at::Tensor& output, const at::Tensor& input) {
  const std::size_t row_bytes = input.nbytes();
  auto* bytes = static_cast<std::byte*>(output.data_ptr());
  for (std::size_t at = 0; row_bytes > 0 && at < output.nbytes(); at += row_bytes) {
    if (bytes + at != input.data_ptr()) {
      std::memset(bytes + at, kNotYetWritten, row_bytes);
    }
  }
}

}  // namespace

std::unique_ptr<Work> SimCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                  CollectiveTag tag) {
  CollectiveInfo info = describe_all_reduce(tensor, op, tag);
  check_place(tensor, info.kind);
  LOCKSTEP_USAGE(is_ring_dtype(tensor.scalar_type()),
                 "all_reduce of {}; Float, Double, Half, BFloat16, Int, Long, Char and Byte can be "
                 "reduced",
                 c10::toString(tensor.scalar_type()));
  return launch({std::move(info), std::move(tensor), {}});
}

std::unique_ptr<Work> SimCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                 CollectiveTag tag) {
  CollectiveInfo info = describe_broadcast(tensor, root, world_size_, tag);
  check_place(tensor, info.kind);
  return launch({std::move(info), std::move(tensor), {}});
}

std::unique_ptr<Work> SimCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                  CollectiveTag tag) {
  CollectiveInfo info = describe_all_gather(output, input, world_size_, tag);
  check_place(output, info.kind);
  check_place(input, info.kind);
  spoil(output, input);
  return launch({std::move(info), std::move(output), std::move(input)});
}

std::unique_ptr<Work> SimCommunicator::barrier(CollectiveTag tag) {
  return launch({describe_barrier(tag), {}, {}});
}

std::unique_ptr<Work> SimCommunicator::launch(Contribution contribution) {
  const std::int64_t seq = exchange_.post(rank_, std::move(contribution));
  return std::make_unique<SimWork>(exchange_, rank_, seq);
}

}  // namespace lockstep::sim
