// SPDX-License-Identifier: Apache-2.0
// The queue between the rank's thread, which launches, and the progress thread, which runs.
#include "core/gloo_communicator.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/gloo_group.h"
#include "core/gloo_signals.h"

namespace lockstep {
namespace {

/// Why a collective failed, in a form that can be thrown on several threads.
struct Failure {
  enum class Kind { kPeerLost, kTimedOut, kDesync, kOther, kInternal };
  Kind kind = Kind::kOther;
  std::string message;
};

[[noreturn]] void throw_failure(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::kPeerLost:
      throw PeerLost(failure.message);
    case Failure::Kind::kTimedOut:
      throw TimedOut(failure.message);
    case Failure::Kind::kDesync:
      throw Desync(failure.message);
    case Failure::Kind::kOther:
      throw CommError(failure.message);
    case Failure::Kind::kInternal:
      break;
  }
  throw InvariantError(failure.message);
}

struct Operation {
  GlooCollective collective;
  bool ended = false;
  std::optional<Failure> failure;
};

/// What the rank's thread, the progress thread and the works in flight share.
struct Queue {
  mutable std::mutex mutex;
  std::condition_variable posted_changed, ended_changed;
  std::deque<std::shared_ptr<Operation>> waiting;
  std::shared_ptr<Operation> running;
  std::int64_t posted = 0, completed = 0;
  std::optional<Failure> failure;  ///< of the first collective that failed
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

std::optional<Failure> run(GlooGroup& group, const GlooCollective& collective) {
  try {
    group.run(collective);
    return std::nullopt;
  } catch (const PeerLost& error) {
    return Failure{Failure::Kind::kPeerLost, error.what()};
  } catch (const TimedOut& error) {
    return Failure{Failure::Kind::kTimedOut, error.what()};
  } catch (const Desync& error) {
    return Failure{Failure::Kind::kDesync, error.what()};
  } catch (const CommError& error) {
    return Failure{Failure::Kind::kOther, error.what()};
  } catch (const std::exception& error) {
    return Failure{Failure::Kind::kInternal, error.what()};
  }
}

void check_dense(const at::Tensor& tensor, const char* what) {
  LOCKSTEP_USAGE(tensor.defined(), "{} of an undefined tensor", what);
  LOCKSTEP_USAGE(tensor.layout() == at::kStrided && tensor.device().is_cpu(),
                 "{} of a {} tensor on {}; Gloo carries dense tensors on the CPU", what,
                 c10::str(tensor.layout()), tensor.device().str());
  LOCKSTEP_USAGE(tensor.is_contiguous(),
                 "{} of a tensor of sizes {} and strides {}, which is not contiguous", what,
                 c10::str(tensor.sizes()), c10::str(tensor.strides()));
}

CollectiveDescription describe_launch(CollectiveKind kind, const at::Tensor& tensor,
                                      CollectiveTag tag) {
  CollectiveDescription what;
  what.kind = kind;
  what.tag = tag;
  if (tensor.defined()) {
    what.numel = tensor.numel();
    what.dtype = c10::toString(tensor.scalar_type());
  }
  return what;
}

}  // namespace

std::string describe(const CollectiveDescription& collective) {
  const CollectiveTag& tag = collective.tag;
  std::string text = fmt::format("{} {}", to_string(collective.kind), to_string(tag.site));
  if (tag.bucket >= 0) {
    text += fmt::format(" {}", tag.bucket);
  }
  if (tag.step >= 0) {
    text += fmt::format(" at step {}", tag.step);
  }
  text += fmt::format(" (seq {}", collective.seq);
  if (collective.kind != CollectiveKind::kBarrier) {
    text += fmt::format(", {} {}", collective.numel, collective.dtype);
  }
  if (collective.kind == CollectiveKind::kAllReduce) {
    text += fmt::format(", {}", to_string(collective.op));
  }
  if (collective.kind == CollectiveKind::kBroadcast) {
    text += fmt::format(", from rank {}", collective.root);
  }
  return text + ")";
}

struct GlooCommunicator::Impl {
  explicit Impl(const GlooOptions& from) : options(from), group(from) {
    const ScopedSignalBlock block;
    progress = std::thread([this] { run_queue(); });
  }
  ~Impl();

  void run_queue();
  Failure give_up(const Operation& operation) const;
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
Failure GlooCommunicator::Impl::give_up(const Operation& operation) const {
  Failure failure;
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
    std::optional<Failure> failure;
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

std::int64_t GlooCommunicator::rank() const { return impl_->options.rank; }
std::int64_t GlooCommunicator::world_size() const { return impl_->options.world_size; }

std::unique_ptr<Work> GlooCommunicator::all_reduce(at::Tensor tensor, ReduceOp op,
                                                   CollectiveTag tag) {
  check_dense(tensor, "all_reduce");
  LOCKSTEP_USAGE(GlooGroup::can_reduce(tensor.scalar_type()),
                 "all_reduce of {}; Gloo reduces Float, Double, Half, BFloat16, Int, Long, Char "
                 "and Byte",
                 c10::toString(tensor.scalar_type()));
  auto what = describe_launch(CollectiveKind::kAllReduce, tensor, tag);
  what.op = op;
  return impl_->launch(std::move(what), std::move(tensor), {});
}

std::unique_ptr<Work> GlooCommunicator::broadcast(at::Tensor tensor, std::int64_t root,
                                                  CollectiveTag tag) {
  check_dense(tensor, "broadcast");
  LOCKSTEP_USAGE(root >= 0 && root < world_size(), "broadcast from rank {} of {} ranks", root,
                 world_size());
  auto what = describe_launch(CollectiveKind::kBroadcast, tensor, tag);
  what.root = root;
  return impl_->launch(std::move(what), std::move(tensor), {});
}

std::unique_ptr<Work> GlooCommunicator::all_gather(at::Tensor output, at::Tensor input,
                                                   CollectiveTag tag) {
  check_dense(output, "all_gather into");
  check_dense(input, "all_gather");
  LOCKSTEP_USAGE(output.scalar_type() == input.scalar_type() && output.dim() >= 1 &&
                     output.size(0) == world_size() &&
                     output.numel() == world_size() * input.numel(),
                 "all_gather of {} {} into {} {}; {} rows of the input's elements are needed",
                 c10::toString(input.scalar_type()), c10::str(input.sizes()),
                 c10::toString(output.scalar_type()), c10::str(output.sizes()), world_size());
  auto what = describe_launch(CollectiveKind::kAllGather, input, tag);
  return impl_->launch(std::move(what), std::move(output), std::move(input));
}

std::unique_ptr<Work> GlooCommunicator::barrier(CollectiveTag tag) {
  return impl_->launch(describe_launch(CollectiveKind::kBarrier, {}, tag), {}, {});
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
