// SPDX-License-Identifier: Apache-2.0
// One collective at a time over connected ranks: first agree on what it is, then move the data.
#include "core/gloo_group.h"

#include <fmt/ranges.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/transport/device.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/comm_failure.h"
#include "core/gloo_mesh.h"
#include "core/gloo_signals.h"
#include "core/gloo_store.h"
#include "core/rendezvous.h"
#include "core/ring_kernels.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Gloo builds its slots as a collective's prefix (1 to 8) in the top byte and the tag below.
constexpr std::uint64_t kArrivalSlotPrefix = std::uint64_t{0x6c} << 56;
constexpr std::uint64_t kProbeSlot = std::uint64_t{0x6d} << 56;

// Part of the reason of pairs that were closed since some wait on their context timed out.
constexpr char kClosedByTimeout[] = "Application timeout";

/// What a rank tells its peers on entering a collective. Zero until it has arrived; the stamp is
/// the last field, so that it is only there once all of the record is.
struct Arrival {
  std::int64_t numel = 0, step = 0, bucket = 0, root = 0;
  std::int32_t dtype = 0;
  std::uint8_t kind = 0, op = 0, site = 0, padding = 0;
  std::uint64_t stamp = 0;
};
static_assert(std::is_trivially_copyable_v<Arrival> && sizeof(Arrival) == 48);

/// Reads a stamp that may be arriving. It is written by the kernel, on behalf of Gloo's event
/// thread; one that is half there equals no stamp that is looked for. Thread sanitizers take this
/// for a race.
__attribute__((no_sanitize("thread"))) std::uint64_t load_stamp(const Arrival& arrival) {
  return __atomic_load_n(&arrival.stamp, __ATOMIC_ACQUIRE);
}

std::uint64_t stamp_of(std::int64_t seq) { return static_cast<std::uint64_t>(seq) + 1; }

}  // namespace

struct GlooGroup::Impl {
  explicit Impl(const GlooOptions& from) : options(from), theirs(from.world_size) {}

  void connect();
  void enter(const CollectiveDescription& what, at::ScalarType dtype);
  void compare(const CollectiveDescription& what) const;
  void transfer(const GlooCollective& collective);
  void all_reduce(const GlooCollective& collective);
  void all_gather(const GlooCollective& collective);
  std::vector<std::pair<std::int64_t, std::string>> find_lost();
  CommFailure diagnose(const CollectiveDescription& what, const std::string& reason);
  std::vector<std::int64_t> missing(std::int64_t seq) const;
  std::string where(const CollectiveDescription& what) const {
    return fmt::format("rank {}: {}", options.rank, describe(what));
  }
  int rank() const { return static_cast<int>(options.rank); }
  int world_size() const { return static_cast<int>(options.world_size); }

  GlooOptions options;
  std::string listens_on;
  std::shared_ptr<GlooMesh> context;  ///< null in a world of one
  std::atomic<bool> failed{false}, aborted{false};

  Arrival mine;
  mutable std::mutex arrivals_mutex;  ///< guards `entering`; the event thread writes `theirs`
  std::vector<Arrival> theirs;        ///< [world_size]
  std::int64_t entering = -1;         ///< seq of the last collective begun
};

void GlooGroup::Impl::connect() {
  const bool alone = options.world_size == 1;
  GroupRendezvousOptions meeting;
  meeting.directory = options.directory;
  meeting.token = options.token;
  meeting.group = options.group;
  meeting.rank = options.rank;
  meeting.world_size = options.world_size;
  if (!alone) {
    meeting.listen = [this] {
      if (!options.device) {
        options.device = GlooDevice::open(options.listen_on);
      }
      return options.device->address();
    };
  }
  meeting.timeout = options.connect_timeout;
  GroupRendezvous rendezvous(std::move(meeting));
  rendezvous.meet();
  listens_on = fmt::format(
      "rank {} on host {} {}", options.rank, this_host().name(),
      alone ? "does not listen" : "listens on " + describe(options.device->listen_address()));
  if (alone) {
    return;
  }
  auto mesh = std::make_shared<GlooMesh>(rank(), world_size());
  // While connecting, Gloo waits five times the context's timeout for each peer.
  mesh->setTimeout(std::max(rendezvous.remaining() / 5, milliseconds(1)));
  auto device = std::static_pointer_cast<gloo::transport::Device>(options.device->handle());
  try {
    const ScopedSignalBlock block;
    connect_mesh(*mesh, std::make_shared<GlooStore>(rendezvous), device, 0);
    mesh->watch();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerLost(fmt::format("rank {}: cannot connect to its peers from {}: {}", options.rank,
                               options.device->address(), error.what()));
  }
  context = std::move(mesh);
}

std::vector<std::int64_t> GlooGroup::Impl::missing(std::int64_t seq) const {
  std::vector<std::int64_t> missing;
  const std::lock_guard<std::mutex> lock(arrivals_mutex);
  for (std::int64_t peer = 0; context && peer < options.world_size; ++peer) {
    if (peer != options.rank && (entering != seq || load_stamp(theirs[peer]) != stamp_of(seq))) {
      missing.push_back(peer);
    }
  }
  return missing;
}

// All ranks to all ranks, so that it takes one message delay and every rank can judge alone.
void GlooGroup::Impl::enter(const CollectiveDescription& what, at::ScalarType dtype) {
  mine = Arrival();
  mine.numel = what.numel;
  mine.step = what.tag.step;
  mine.bucket = what.tag.bucket;
  mine.root = what.root;
  mine.dtype = static_cast<std::int32_t>(dtype);
  mine.kind = static_cast<std::uint8_t>(what.kind);
  mine.op = static_cast<std::uint8_t>(what.op);
  mine.site = static_cast<std::uint8_t>(what.tag.site);
  mine.stamp = stamp_of(what.seq);
  {
    const std::lock_guard<std::mutex> lock(arrivals_mutex);
    std::fill(theirs.begin(), theirs.end(), Arrival());
    theirs[rank()] = mine;
    entering = what.seq;
  }
  context->set_alarm(Clock::now() + options.timeout);
  const std::uint64_t slot = kArrivalSlotPrefix + static_cast<std::uint64_t>(what.seq);
  const auto receive = context->createUnboundBuffer(theirs.data(), theirs.size() * sizeof(Arrival));
  const auto send = context->createUnboundBuffer(&mine, sizeof(Arrival));
  for (int hop = 1; hop < world_size(); ++hop) {
    const int peer = (rank() + hop) % world_size();
    receive->recv(peer, slot, static_cast<std::size_t>(peer) * sizeof(Arrival), sizeof(Arrival));
    send->send(peer, slot, 0, sizeof(Arrival));
  }
  for (int hop = 1; hop < world_size(); ++hop) {
    receive->waitRecv(kGlooEndless);
  }
  // A rank must not leave, not even for a Desync, before its peers can read what it wanted.
  for (int hop = 1; hop < world_size(); ++hop) {
    send->waitSend(kGlooEndless);
  }
  context->clear_alarm();
  if (context->alarm_has_rung()) {
    throw gloo::IoException("interrupted");
  }
}

void GlooGroup::Impl::compare(const CollectiveDescription& what) const {
  const auto text = [this](std::int64_t peer) {
    const Arrival& theirs_now = theirs[peer];
    CollectiveDescription other;
    other.seq = static_cast<std::int64_t>(theirs_now.stamp) - 1;
    other.kind = static_cast<CollectiveKind>(theirs_now.kind);
    other.op = static_cast<ReduceOp>(theirs_now.op);
    other.tag = {static_cast<CallSite>(theirs_now.site), theirs_now.step, theirs_now.bucket};
    other.numel = theirs_now.numel;
    other.dtype = c10::toString(static_cast<at::ScalarType>(theirs_now.dtype));
    other.root = theirs_now.root;
    return fmt::format("rank {} is in {}", peer, describe(other));
  };
  const Arrival& first = theirs[0];
  for (std::int64_t peer = 1; peer < options.world_size; ++peer) {
    const Arrival& other = theirs[peer];
    const bool same_shape = other.kind == first.kind && other.op == first.op &&
                            other.numel == first.numel && other.dtype == first.dtype &&
                            other.root == first.root;
    const bool same_tag =
        other.site == first.site && other.step == first.step && other.bucket == first.bucket;
    if (!same_shape || (options.check_tags && !same_tag)) {
      throw Desync(fmt::format("{}: ranks disagree on collective {}: {}, {}", where(what), what.seq,
                               text(0), text(peer)));
    }
  }
}

void GlooGroup::Impl::all_reduce(const GlooCollective& collective) {
  const at::Tensor& tensor = collective.tensor;
  gloo::AllreduceOptions reduce(context);
  reduce.setTag(static_cast<std::uint32_t>(collective.what.seq));
  reduce.setTimeout(options.timeout);
  reduce.setReduceFunction(find_ring_kernel(tensor.scalar_type(), collective.what.op));
  void* const memory = tensor.data_ptr();
  const auto numel = static_cast<std::size_t>(tensor.numel());
  // Gloo needs to know the element's size, not its type.
  switch (tensor.element_size()) {
    case 1:
      reduce.setOutput(static_cast<std::uint8_t*>(memory), numel);
      break;
    case 2:
      reduce.setOutput(static_cast<std::uint16_t*>(memory), numel);
      break;
    case 4:
      reduce.setOutput(static_cast<std::uint32_t*>(memory), numel);
      break;
    default:
      reduce.setOutput(static_cast<std::uint64_t*>(memory), numel);
      break;
  }
  gloo::allreduce(reduce);
}

void GlooGroup::Impl::all_gather(const GlooCollective& collective) {
  auto* const output = static_cast<std::uint8_t*>(collective.tensor.data_ptr());
  auto* const input = static_cast<std::uint8_t*>(collective.input.data_ptr());
  const std::size_t input_bytes = collective.input.nbytes();
  std::uint8_t* const own_row = output + static_cast<std::size_t>(rank()) * input_bytes;
  if (input != own_row) {
    std::memmove(own_row, input, input_bytes);
  }
  if (context) {
    gloo::AllgatherOptions gather(context);
    gather.setTag(static_cast<std::uint32_t>(collective.what.seq));
    gather.setTimeout(options.timeout);
    gather.setOutput(output, input_bytes * static_cast<std::size_t>(world_size()));
    gloo::allgather(gather);
  }
}

void GlooGroup::Impl::transfer(const GlooCollective& collective) {
  const CollectiveDescription& what = collective.what;
  if (what.numel == 0) {
    return;  // a barrier is over once all have entered
  }
  if (what.kind == CollectiveKind::kAllGather) {
    all_gather(collective);
  } else if (context && what.kind == CollectiveKind::kAllReduce) {
    all_reduce(collective);
  } else if (context && what.kind == CollectiveKind::kBroadcast) {
    gloo::BroadcastOptions broadcast(context);
    broadcast.setTag(static_cast<std::uint32_t>(what.seq));
    broadcast.setTimeout(options.timeout);
    broadcast.setRoot(static_cast<int>(what.root));
    broadcast.setOutput(static_cast<std::uint8_t*>(collective.tensor.data_ptr()),
                        collective.tensor.nbytes());
    gloo::broadcast(broadcast);
  }
}

// A pair that has failed throws its reason at every use. All pairs fail after a wait has timed out
// or the group was aborted; those are told apart by Gloo's text.
std::vector<std::pair<std::int64_t, std::string>> GlooGroup::Impl::find_lost() {
  std::vector<std::pair<std::int64_t, std::string>> lost;
  std::uint64_t nothing = 0;
  const auto probe = context->createUnboundBuffer(&nothing, sizeof(nothing));
  for (int hop = 1; hop < world_size(); ++hop) {
    const int peer = (rank() + hop) % world_size();
    try {
      probe->recv(peer, kProbeSlot, 0, sizeof(nothing));
    } catch (const std::exception& error) {
      if (std::string(error.what()).find(kClosedByTimeout) == std::string::npos) {
        lost.emplace_back(peer, error.what());
      }
    }
  }
  return lost;
}

// Also tells the peers what they should know.
CommFailure GlooGroup::Impl::diagnose(const CollectiveDescription& what,
                                      const std::string& reason) {
  FailureEvidence evidence;
  evidence.rank = options.rank;
  evidence.where = where(what);
  evidence.reason = reason;
  evidence.timeout = options.timeout;
  evidence.broken = find_lost();
  for (int peer = 0; peer < world_size(); ++peer) {
    evidence.farewells.push_back(context->farewell_of(peer));
  }
  evidence.missing = missing(what.seq);
  evidence.aborted = aborted;
  evidence.timed_out = context->alarm_has_rung() || reason.find("Timed out") != std::string::npos;
  const Blame blame = blame_for(evidence);
  if (blame.farewell.kind != Farewell::Kind::kNone) {
    context->say_goodbye(blame.farewell);
  }
  return blame.failure;
}

GlooGroup::GlooGroup(const GlooOptions& options) : impl_(std::make_unique<Impl>(options)) {
  impl_->connect();
}

GlooGroup::~GlooGroup() {
  if (impl_->context && !impl_->failed && !impl_->aborted) {
    impl_->context->say_goodbye({Farewell::Kind::kDone, -1});
  }
}

const std::string& GlooGroup::listens_on() const { return impl_->listens_on; }

bool GlooGroup::can_reduce(at::ScalarType dtype) {
  return find_ring_kernel(dtype, ReduceOp::kSum) != nullptr;
}

void GlooGroup::run(const GlooCollective& collective) {
  const CollectiveDescription& what = collective.what;
  const auto give_up = [&] {
    impl_->failed = true;
    if (impl_->context) {
      impl_->context->close();
    }
  };
  try {
    if (impl_->context) {
      impl_->enter(what, collective.tensor.defined() ? collective.tensor.scalar_type()
                                                     : at::ScalarType::Undefined);
      impl_->compare(what);
    }
    impl_->transfer(collective);
  } catch (const Desync&) {
    // The others are about to see the same; nobody's wait needs to be ended for it.
    impl_->context->say_goodbye({Farewell::Kind::kDone, -1});
    give_up();
    throw;
  } catch (const std::exception& error) {
    const CommFailure failure = impl_->diagnose(what, error.what());
    give_up();
    throw_failure(failure);
  }
}

void GlooGroup::abort() noexcept {
  impl_->aborted = true;
  if (impl_->context) {
    impl_->context->close();
  }
}

std::vector<std::int64_t> GlooGroup::missing(std::int64_t seq) const { return impl_->missing(seq); }

}  // namespace lockstep
