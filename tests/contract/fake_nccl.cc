// SPDX-License-Identifier: Apache-2.0
// Cliques of ranks, and collectives that are carried out when all of a clique have come to them.
#include <fmt/format.h>
#include <torch/types.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/contract/fake_gpu.h"

namespace lockstep::test {
namespace {

constexpr int kInvalidArgument = 4;

// Parts of a group in progress; like NCCL's, a group belongs to a thread.
thread_local int group_depth = 0;
thread_local std::function<void()> group_launch;

at::ScalarType dtype_of(NcclType type) {
  switch (type) {
    case NcclType::kInt8:
      return at::kChar;
    case NcclType::kUint8:
      return at::kByte;
    case NcclType::kInt32:
      return at::kInt;
    case NcclType::kInt64:
      return at::kLong;
    case NcclType::kFloat16:
      return at::kHalf;
    case NcclType::kFloat32:
      return at::kFloat;
    case NcclType::kFloat64:
      return at::kDouble;
    case NcclType::kBfloat16:
      return at::kBFloat16;
  }
  std::abort();
}

at::Tensor view_of(const void* memory, std::size_t count, NcclType type) {
  return at::from_blob(const_cast<void*>(memory), {static_cast<std::int64_t>(count)},
                       dtype_of(type));
}

}  // namespace

int FakeGpu::enqueue_part(Comm& comm, Part part, Stream& stream) {
  const Lock lock(mutex_);
  if (comm.is_freed || comm.is_launching || group_depth == 0) {
    ++num_misused_;
    return kInvalidArgument;
  }
  calls_.push_back(fmt::format("{} of {}", part.name, part.count));
  Clique& clique = *comm.clique;
  if (!group_launch) {
    if (comm.num_launched == clique.meetings.size()) {
      clique.meetings.push_back(std::make_shared<Meeting>());
    }
    const auto meeting = clique.meetings[comm.num_launched++];
    group_launch = [this, &comm, &stream, meeting] {
      comm.is_launching = true;
      stream.work.push_back([this, &comm, meeting, has_come = false]() mutable {
        if (!std::exchange(has_come, true)) {
          ++meeting->num_come;
        }
        if (meeting->num_come == comm.clique->world_size && !meeting->is_done) {
          carry_out(*meeting);
        }
        return meeting->is_done || comm.is_aborted;
      });
    };
  }
  clique.meetings[comm.num_launched - 1]->by_rank[comm.rank].push_back(std::move(part));
  return kGpuSuccess;
}

void FakeGpu::carry_out(Meeting& meeting) {
  meeting.is_done = true;
  const std::size_t num_parts = meeting.by_rank.begin()->second.size();
  for (std::size_t i = 0; i < num_parts; ++i) {
    const Part& first = meeting.by_rank.begin()->second[i];
    ran_.push_back(first.name);
    if (first.name == "all_reduce") {
      at::Tensor result;
      for (const auto& [rank, parts] : meeting.by_rank) {
        const at::Tensor in = view_of(parts[i].in, parts[i].count, parts[i].type);
        result = !result.defined()          ? in.clone()
                 : first.op == NcclOp::kSum ? result.add_(in)
                                            : at::maximum(result, in);
      }
      for (const auto& [rank, parts] : meeting.by_rank) {
        view_of(parts[i].out, parts[i].count, parts[i].type).copy_(result);
      }
      continue;
    }
    const std::size_t bytes = first.count * view_of(nullptr, 0, first.type).element_size();
    for (const auto& [rank, parts] : meeting.by_rank) {
      for (const auto& [source, theirs] : meeting.by_rank) {
        auto* const out = static_cast<char*>(parts[i].out);
        if (first.name == "broadcast" && source == first.root) {
          std::memmove(out, theirs[i].in, bytes);
        } else if (first.name == "all_gather") {
          std::memmove(out + static_cast<std::size_t>(source) * bytes, theirs[i].in, bytes);
        }
      }
    }
  }
}

void FakeGpu::add_nccl() {
  api.version = [this](int* version) {
    *version = installed_version;
    return kGpuSuccess;
  };
  api.unique_id = [this](NcclId* id) {
    const Lock lock(mutex_);
    id->fill(static_cast<char>(++num_ids_));
    return kGpuSuccess;
  };
  api.init_rank = [this](NcclComm* handle, int world_size, const NcclId& id, int rank) {
    const Lock lock(mutex_);
    auto& clique = cliques_[id];
    if (clique == nullptr) {
      clique = std::make_unique<Clique>();
      clique->world_size = world_size;
    }
    ++clique->num_joined;
    comms_.push_back(std::make_unique<Comm>());
    comms_.back()->clique = clique.get();
    comms_.back()->rank = rank;
    *handle = reinterpret_cast<NcclComm>(comms_.back().get());
    return kNcclInProgress;
  };
  api.async_error = [this](NcclComm handle, int* error) {
    const Lock lock(mutex_);
    pump();
    Comm& comm = real<Comm>(handle);
    num_misused_ += comm.is_freed ? 1 : 0;
    const bool joins = comm.clique->num_joined < comm.clique->world_size;
    const bool ends = comm.is_finalizing && comm.clique->num_finalized < comm.clique->world_size;
    *error = error_ != 0                          ? error_
             : joins || ends || comm.is_launching ? kNcclInProgress
                                                  : kGpuSuccess;
    comm.is_launching = false;
    return kGpuSuccess;
  };
  api.all_reduce = [this](const void* in, void* out, std::size_t count, NcclType type, NcclOp op,
                          NcclComm comm, CudaStream stream) {
    return enqueue_part(real<Comm>(comm), {"all_reduce", in, out, count, type, op, -1},
                        real<Stream>(stream));
  };
  api.broadcast = [this](const void* in, void* out, std::size_t count, NcclType type, int root,
                         NcclComm comm, CudaStream stream) {
    return enqueue_part(real<Comm>(comm), {"broadcast", in, out, count, type, NcclOp::kSum, root},
                        real<Stream>(stream));
  };
  api.all_gather = [this](const void* in, void* out, std::size_t count, NcclType type,
                          NcclComm comm, CudaStream stream) {
    return enqueue_part(real<Comm>(comm), {"all_gather", in, out, count, type, NcclOp::kSum, -1},
                        real<Stream>(stream));
  };
  api.group_start = [this] {
    const Lock lock(mutex_);
    calls_.emplace_back("group {");
    ++group_depth;
    return kGpuSuccess;
  };
  api.group_end = [this] {
    const Lock lock(mutex_);
    calls_.emplace_back("} group");
    --group_depth;
    const auto launch = std::exchange(group_launch, nullptr);
    if (!launch) {
      return kGpuSuccess;
    }
    launch();
    pump();
    return kNcclInProgress;
  };
  api.finalize = [this](NcclComm handle) {
    const Lock lock(mutex_);
    Comm& comm = real<Comm>(handle);
    comm.is_finalizing = true;
    ++comm.clique->num_finalized;
    return kNcclInProgress;
  };
  api.destroy = [this](NcclComm handle) {
    const Lock lock(mutex_);
    num_misused_ += std::exchange(real<Comm>(handle).is_freed, true) ? 1 : 0;
    ++num_destroyed_;
    return kGpuSuccess;
  };
  api.abort = [this](NcclComm handle) {
    const Lock lock(mutex_);
    Comm& comm = real<Comm>(handle);
    num_misused_ += std::exchange(comm.is_freed, true) ? 1 : 0;
    comm.is_aborted = true;
    ++num_aborted_;
    pump();
    return kGpuSuccess;
  };
  api.nccl_text = [](int error, NcclComm) { return fmt::format("text of NCCL error {}", error); };
}

}  // namespace lockstep::test
