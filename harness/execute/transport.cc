// SPDX-License-Identifier: Apache-2.0
// One function per transport, of those that were built.
#include "harness/execute/transport.h"

#include <sched.h>

#include <chrono>

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
    if (shared_->device == nullptr) {
      const ScopedBatchPolicy policy;
      shared_->device = GlooDevice::open();
    }
    auto options = options_of<GlooOptions>(order);
    options.token = order.token;
    options.device = shared_->device;
    options.check_tags = check_tags;
    return make_gloo_communicator(options);
  }
#endif
  LOCKSTEP_CHECK(order.transport == "nccl", "no transport '{}'", order.transport);
  auto options = options_of<NcclOptions>(order);
  options.token = order.token;
  options.wait_on_host = true;  // a rank that waits must be seen waiting
  return make_nccl_communicator(options);
}

}  // namespace lockstep::harness
