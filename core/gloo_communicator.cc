// SPDX-License-Identifier: Apache-2.0
// The queue between the rank's thread, which launches, and the progress thread, which runs.
#include "core/gloo_communicator.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/comm_failure.h"
#include "core/gloo_group.h"
#include "core/gloo_signals.h"

namespace lockstep {
namespace {

struct Operation {
  GlooCollective collective;
  bool ended = false;
  std::optional<CommFailure> failure;
};

/// What the rank's thread, the progress thread and the works in flight share.
struct Queue {
  mutable std::mutex mutex;
  std::condition_variable posted_changed, ended_changed;
  std::deque<std::shared_ptr<Operation>> waiting;
  std::shared_ptr<Operation> running;
  std::int64_t posted = 0, completed = 0;
  std::optional<CommFailure> failure;  ///< of the first collective that failed
  bool closing = false;
};

class GlooWork final : public Work {
 public:
  GlooWork(std::shared_ptr<Queue> queue, std::shared_ptr<Operation> operation)
      : queue_(std::move(queue)), operation_(std::move(operation)) {}

  void wait() override {
    std::unique_lock<std::mutex> lock(queue_->mutex);
    queue_->ended_changed.wait(lock, [this] { return operation_->ended; });
    if (operation_->failure) {
      throw_failure(*operation_->failure);
    }
  }

 private:
  std::shared_ptr<Queue> queue_;
  std::shared_ptr<Operation> operation_;
};

std::optional<CommFailure> run(GlooGroup& group, const GlooCollective& collective) {
  try {
    group.run(collective);
    return std::nullopt;
  } catch (const PeerLost& error) {
    return CommFailure{CommFailure::Kind::kPeerLost, error.what()};
  } catch (const TimedOut& error) {
    return CommFailure{CommFailure::Kind::kTimedOut, error.what()};
  } catch (const Desync& error) {
    return CommFailure{CommFailure::Kind::kDesync, error.what()};
  } catch (const CommError& error) {
    return CommFailure{CommFailure::Kind::kOther, error.what()};
  } catch (const std::exception& error) {
    return CommFailure{CommFailure::Kind::kInternal, error.what()};
  }
}

void check_on_cpu(const at::Tensor& tensor, const char* what) {
  LOCKSTEP_USAGE(tensor.device().is_cpu(), "{} of a tensor on {}; Gloo carries tensors on the CPU",
                 what, tensor.device().str());
}

}  // namespace

struct GlooCommunicator::Impl {
  explicit Impl(const GlooOptions& from) : options(from), group(from) {
    const ScopedSignalBlock block;
    progress = std::thread([this] { run_queue(); });
  }
  ~Impl();

  void run_queue();
  CommFailure give_up(const Operation& operation) const;
  std::unique_ptr<Work> launch(CollectiveDescription what, at::Tensor tensor, at::Tensor input);

  const GlooOptions options;
  GlooGroup group;
  const std::shared_ptr<Queue> queue = std::make_shared<Queue>();
  std::thread progress;
};

GlooCommunicator::Impl::~Impl() {
  bool idle = true;
  {
    const std::lock_guard<std::mutex> lock(queue->mutex);
    queue->closing = true;
    idle = !queue->running && queue->waiting.empty();
  }
  queue->posted_changed.notify_one();
  if (!idle) {
    group.abort();
  }
  progress.join();
}

/// Why `operation` is not even begun. Called with the queue locked.
CommFailure GlooCommunicator::Impl::give_up(const Operation& operation) const {
  CommFailure failure;
  if (queue->failure) {
    failure = *queue->failure;
  } else {
    failure.message = "the communicator is being destroyed";
  }
  failure.message = fmt::format("rank {}: {} was not begun: {}", options.rank,
                                describe(operation.collective.what), failure.message);
  return failure;
}

void GlooCommunicator::Impl::run_queue() {
  std::unique_lock<std::mutex> lock(queue->mutex);
  while (true) {
    queue->posted_changed.wait(lock, [this] { return queue->closing || !queue->waiting.empty(); });
    if (queue->waiting.empty()) {
      return;
    }
    const std::shared_ptr<Operation> operation = std::move(queue->waiting.front());
    queue->waiting.pop_front();
    std::optional<CommFailure> failure;
    if (queue->failure || queue->closing) {
      failure = give_up(*operation);
    } else {
      queue->running = operation;
      lock.unlock();
      failure = run(group, operation->collective);
      lock.lock();
      queue->running = nullptr;
      if (failure) {
        queue->failure = failure;
      }
    }
    // The tensors may be the last references; let them go before anybody is told.
    operation->collective.tensor.reset();
    operation->collective.input.reset();
    operation->failure = std::move(failure);
    operation->ended = true;
    ++queue->completed;
    queue->ended_changed.notify_all();
  }
}

std::unique_ptr<Work> GlooCommunicator::Impl::launch(CollectiveDescription what, at::Tensor tensor,
                                                     at::Tensor input) {
  const auto operation = std::make_shared<Operation>();
  {
    const std::lock_guard<std::mutex> lock(queue->mutex);
    what.seq = queue->posted++;
    operation->collective = {std::move(what), std::move(tensor), std::move(input)};
    queue->waiting.push_back(operation);
  }
  queue->posted_changed.notify_one();
  return std::make_unique<GlooWork>(queue, operation);
}

GlooCommunicator::GlooCommunicator(const GlooOptions& options) {
  LOCKSTEP_USAGE(options.timeout.count() > 0, "timeout of {} ms", options.timeout.count());
  impl_ = std::make_unique<Impl>(options);
}

GlooCommunicator::~GlooCommunicator() = default;

const std::string& GlooCommunicator::listens_on() const { return impl_->group.listens_on(); }

std::int64_t GlooCommunicator::rank() const { return impl_->options.rank; }
std::int64_t GlooCommunicator::world_size() const { return impl_->options.world_size; }

std::unique_ptr<Work> GlooCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                   CollectiveTag tag) {
  auto what = describe_all_reduce(tensor, op, tag);
  check_on_cpu(tensor, "all_reduce");
  LOCKSTEP_USAGE(GlooGroup::can_reduce(tensor.scalar_type()),
                 "all_reduce of {}; Gloo reduces Float, Double, Half, BFloat16, Int, Long, Char "
                 "and Byte",
                 c10::toString(tensor.scalar_type()));
  return impl_->launch(std::move(what), std::move(tensor), {});
}

std::unique_ptr<Work> GlooCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                  CollectiveTag tag) {
  auto what = describe_broadcast(tensor, root, world_size(), tag);
  check_on_cpu(tensor, "broadcast");
  return impl_->launch(std::move(what), std::move(tensor), {});
}

std::unique_ptr<Work> GlooCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                   CollectiveTag tag) {
  auto what = describe_all_gather(output, input, world_size(), tag);
  check_on_cpu(output, "all_gather into");
  check_on_cpu(input, "all_gather");
  return impl_->launch(std::move(what), std::move(output), std::move(input));
}

std::unique_ptr<Work> GlooCommunicator::barrier(CollectiveTag tag) {
  return impl_->launch(describe_barrier(tag), {}, {});
}

CommunicatorStatus GlooCommunicator::status() const {
  CommunicatorStatus status;
  {
    const std::lock_guard<std::mutex> lock(impl_->queue->mutex);
    status.posted = impl_->queue->posted;
    status.completed = impl_->queue->completed;
    if (impl_->queue->running) {
      status.running = impl_->queue->running->collective.what;
    }
    if (impl_->queue->failure) {
      status.failure = impl_->queue->failure->message;
    }
  }
  if (status.running) {
    status.waiting_for = impl_->group.missing(status.running->seq);
  }
  return status;
}

std::unique_ptr<GlooCommunicator> make_gloo_communicator(const GlooOptions& options) {
  return std::make_unique<GlooCommunicator>(options);
}

}  // namespace lockstep
