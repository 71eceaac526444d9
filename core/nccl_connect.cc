// SPDX-License-Identifier: Apache-2.0
// Meeting, agreeing on who has which GPU, exchanging the unique id, connecting.
#include "core/nccl_connect.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/rendezvous.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kIdKey[] = "nccl_id";

int installed_version(const NcclApi& api) {
  int version = 0;
  return api.version(&version) == kGpuSuccess ? version : 0;
}

int choose_device(const NcclApi& api, const NcclOptions& options) {
  const int count = count_gpus(api);
  const std::int64_t device = options.device < 0 ? options.rank % count : options.device;
  LOCKSTEP_USAGE(device < count, "rank {}: there is no device {}; CUDA sees {}", options.rank,
                 device, count == 1 ? "device 0 only" : fmt::format("devices 0 to {}", count - 1));
  return static_cast<int>(device);
}

/// All ranks see the same records, so that all refuse alike.
void check_sharing(const NcclApi& api, const NcclOptions& options,
                   const std::vector<PeerRecord>& ranks) {
  std::map<std::string, std::vector<std::int64_t>> on_gpu;
  for (const PeerRecord& record : ranks) {
    on_gpu[record.host + " " + record.address].push_back(record.rank);
  }
  for (const auto& [gpu, sharing] : on_gpu) {
    const int version = installed_version(api);
    LOCKSTEP_USAGE(
        sharing.size() <= 1 || nccl_lets_ranks_share(api),
        "rank {}: ranks {} share one GPU ({}), which NCCL {} cannot. Start at most {} ranks, one "
        "per GPU{}",
        options.rank, fmt::join(sharing, ", "), gpu, nccl_version_text(version), on_gpu.size(),
        version >= kNcclSharesGpus
            ? ", or set NCCL_MULTI_RANK_GPU_ENABLE=1"
            : ", or install NCCL 2.30 or later and set NCCL_MULTI_RANK_GPU_ENABLE=1");
  }
}

NcclId exchange_id(const NcclApi& api, const NcclOptions& options, GroupRendezvous& rendezvous) {
  NcclId id{};
  if (options.rank == 0) {
    const int status = api.unique_id(&id);
    if (status != kGpuSuccess) {
      throw CommError(fmt::format("rank 0: NCCL gives no unique id: error {}: {}", status,
                                  api.nccl_text(status, nullptr)));
    }
    rendezvous.set(kIdKey, {id.begin(), id.end()});
    return id;
  }
  const std::vector<char> published = rendezvous.get(kIdKey);
  LOCKSTEP_USAGE(published.size() == id.size(),
                 "rank {}: rank 0 has published {} bytes as NCCL's unique id, not {}: it is "
                 "another program",
                 options.rank, published.size(), id.size());
  std::copy(published.begin(), published.end(), id.begin());
  return id;
}

}  // namespace

NcclConnection connect_nccl(const NcclApi& api, const NcclOptions& options) {
  LOCKSTEP_USAGE(options.timeout.count() > 0, "timeout of {} ms", options.timeout.count());
  GroupRendezvousOptions meeting;
  meeting.directory = options.directory;
  meeting.token = options.token;
  meeting.group = options.group;
  meeting.rank = options.rank;
  meeting.world_size = options.world_size;
  meeting.timeout = options.connect_timeout;
  NcclConnection connection;
  connection.device = choose_device(api, options);
  const int status = api.device_address(&meeting.address, connection.device);
  LOCKSTEP_USAGE(status == kGpuSuccess, "rank {}: device {} cannot be used: {}", options.rank,
                 connection.device, api.cuda_text(status));
  GroupRendezvous rendezvous(std::move(meeting));
  check_sharing(api, options, rendezvous.meet());
  const NcclId id = exchange_id(api, options, rendezvous);

  const ScopedGpu gpu(api, connection.device);
  const auto deadline = Clock::now() + rendezvous.remaining();
  int state = api.init_rank(&connection.comm, static_cast<int>(options.world_size), id,
                            static_cast<int>(options.rank));
  while (state == kNcclInProgress && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const int asked = api.async_error(connection.comm, &state);
    state = asked == kGpuSuccess ? state : asked;
  }
  if (state == kGpuSuccess) {
    return connection;
  }
  const std::string text = api.nccl_text(state, connection.comm);
  if (connection.comm != nullptr) {
    api.abort(connection.comm);
  }
  if (state == kNcclInProgress) {
    throw TimedOut(fmt::format("rank {}: NCCL did not connect all {} ranks within {} ms",
                               options.rank, options.world_size, options.connect_timeout.count()));
  }
  throw CommError(
      fmt::format("rank {}: NCCL cannot connect its {} ranks: error {}: {}; "
                  "NCCL_DEBUG=WARN in the environment makes it say more",
                  options.rank, options.world_size, state, text));
}

}  // namespace lockstep
