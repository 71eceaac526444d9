// SPDX-License-Identifier: Apache-2.0
// One function per transport, of those that were built.
#include "harness/execute/transport.h"

#include <sched.h>

#include <chrono>
#include <filesystem>

#include "core/check.h"
#include "core/nccl_communicator.h"
#ifdef LOCKSTEP_WITH_GLOO
#include "core/gloo_communicator.h"
#include "core/gloo_device.h"
#include "harness/execute/c10d_gloo_communicator.h"
#endif

namespace lockstep::harness {
namespace {

/// What the options of all transports have in common.
template <typename Options>
Options options_of(const CaseOrder& order) {
  Options options;
  options.rank = order.rank;
  options.world_size = order.world_size;
  options.directory = order.directory;
  options.timeout = std::chrono::milliseconds(order.transfer_timeout_ms);
  options.connect_timeout = std::chrono::milliseconds(order.connect_timeout_ms);
  return options;
}

#ifdef LOCKSTEP_WITH_GLOO
/// Threads that are made while this lives do not preempt others when they wake up.
///
/// Gloo's event thread looks again and again, without ever sleeping, at a connection that another
/// thread has locked. If it wakes up on the core of the very thread that holds the lock and takes
/// its place, nothing moves for a time slice.
class ScopedBatchPolicy {
 public:
  ScopedBatchPolicy() { set(SCHED_BATCH); }
  ~ScopedBatchPolicy() { set(SCHED_OTHER); }
  ScopedBatchPolicy(const ScopedBatchPolicy&) = delete;
  ScopedBatchPolicy& operator=(const ScopedBatchPolicy&) = delete;

 private:
  static void set(int policy) {
    const sched_param parameters{};
    // Of no consequence for results, so that a refusal does not matter.
    ::sched_setscheduler(0, policy, &parameters);
  }
};
#endif

}  // namespace

struct Transports::Shared {
#ifdef LOCKSTEP_WITH_GLOO
  std::shared_ptr<GlooDevice> device;
#endif
};

Transports::Transports() : shared_(std::make_unique<Shared>()) {}
Transports::~Transports() = default;

bool has_transport(const std::string& transport) {
#ifdef LOCKSTEP_WITH_GLOO
  if (transport == "gloo") return true;
#ifdef LOCKSTEP_WITH_TORCH_REDUCER
  if (transport == "c10d_gloo") return true;
#endif
#endif
  return transport == "nccl";
}

#ifdef LOCKSTEP_WITH_GLOO
std::unique_ptr<Communicator> Transports::connect_gloo(const CaseOrder& order, bool check_tags) {
  const ScopedBatchPolicy policy;
  auto options = options_of<GlooOptions>(order);
  options.token = order.token;
  options.check_tags = check_tags;
  if (!order.interface.empty() || order.port != 0) {
    options.listen_on.interface = order.interface.empty() ? "127.0.0.1" : order.interface;
    options.listen_on.port = order.port;
  } else {
    if (shared_->device == nullptr) {
      shared_->device = GlooDevice::open();
    }
    options.device = shared_->device;
  }
  auto communicator = std::make_unique<GlooCommunicator>(options);
  listens_on_ = communicator->listens_on();
  if (order.store_removed) {
    communicator->barrier({CallSite::kBarrier})->wait();
    if (order.rank == 0) {
      std::filesystem::remove_all(order.directory);
    }
    communicator->barrier({CallSite::kBarrier})->wait();
    options.group = "subgroup";
    return make_gloo_communicator(options);
  }
  return communicator;
}
#endif

std::unique_ptr<Communicator> Transports::connect(const CaseOrder& order,
                                                  [[maybe_unused]] bool check_tags) {
#ifdef LOCKSTEP_WITH_GLOO
#ifdef LOCKSTEP_WITH_TORCH_REDUCER
  if (order.transport == "c10d_gloo") {
    const ScopedBatchPolicy policy;
    return make_c10d_gloo_communicator(options_of<C10dGlooOptions>(order));
  }
#endif
  if (order.transport == "gloo") {
    return connect_gloo(order, check_tags);
  }
#endif
  LOCKSTEP_CHECK(order.transport == "nccl", "no transport '{}'", order.transport);
  listens_on_.clear();
  auto options = options_of<NcclOptions>(order);
  options.token = order.token;
  options.wait_on_host = true;  // a rank that waits must be seen waiting
  return make_nccl_communicator(options);
}

}  // namespace lockstep::harness
