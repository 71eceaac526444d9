// SPDX-License-Identifier: Apache-2.0
// Builds the ranks of a world, runs them, and says how each ended.
#include "sim/world.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <atomic>
#include <cfenv>
#include <deque>
#include <utility>

#include "core/check.h"
#include "sim/cancelled.h"
#include "sim/dispatcher.h"
#include "sim/rank_executor.h"
#include "sim/sim_communicator.h"
#include "sim/trace_recorder.h"
#include "sim/virtual_clock.h"

namespace lockstep::sim {
namespace {

constexpr std::int64_t kWorldSizeMax = 1024;

// LibTorch's generator and thread count belong to the process, so worlds take turns.
class OneWorldGuard {
 public:
  OneWorldGuard() {
    LOCKSTEP_USAGE(!running().exchange(true),
                   "a simulated world is already running in this "
                   "process; run one after the other, or use processes");
  }
  ~OneWorldGuard() { running() = false; }
  OneWorldGuard(const OneWorldGuard&) = delete;
  OneWorldGuard& operator=(const OneWorldGuard&) = delete;

 private:
  static std::atomic<bool>& running() {
    static std::atomic<bool> flag{false};
    return flag;
  }
};

// One LibTorch thread while the world runs: sums would otherwise depend on how work is split.
class SerialTorchGuard {
 public:
  SerialTorchGuard() : num_threads_(at::get_num_threads()) { set(1); }
  ~SerialTorchGuard() { set(num_threads_); }
  SerialTorchGuard(const SerialTorchGuard&) = delete;
  SerialTorchGuard& operator=(const SerialTorchGuard&) = delete;

 private:
  void set(int num_threads) const {
    if (num_threads_ != 1) {
      at::set_num_threads(num_threads);
    }
  }
  int num_threads_;
};

// What a new thread would take over from the caller, so that a kept thread behaves like a new one.
class ThreadInheritance {
 public:
  ThreadInheritance() { std::fegetenv(&floating_point_); }

  /// On a rank's thread, for the guard's life: LibTorch's thread-local state; for good: rounding
  /// and denormal modes, with all floating-point flags clear.
  at::ThreadLocalStateGuard enter() const {
    std::fesetenv(&floating_point_);
    std::feclearexcept(FE_ALL_EXCEPT);
    return at::ThreadLocalStateGuard(torch_);
  }

 private:
  at::ThreadLocalState torch_;
  std::fenv_t floating_point_;
};

class SimRank final : public RankContext, private Observer {
 public:
  SimRank(Dispatcher& dispatcher, TraceRecorder& recorder, CollectiveExchange& exchange,
          std::int64_t rank, const WorldOptions& options)
      : dispatcher_(dispatcher),
        recorder_(recorder),
        exchange_(exchange),
        communicator_(exchange, rank, options.world_size),
        first_scheduled_step_(options.first_scheduled_step) {}

  std::int64_t rank() const override { return communicator_.rank(); }
  Communicator& communicator() override { return communicator_; }
  Observer& observer() override { return *this; }
  void yield() override { dispatcher_.give_way(rank()); }
  void sleep_ns(std::int64_t duration_ns) override { dispatcher_.sleep(rank(), duration_ns); }
  std::int64_t now_ns() const override { return dispatcher_.now_ns(); }
  void die() override {
    has_died_ = true;
    exchange_.lose(rank());
    dispatcher_.give_up(rank());
    throw Cancelled();
  }
  bool has_died() const { return has_died_; }

 private:
  void on_event(const Event& event) override {
    recorder_.record(rank(), event);
    if (event.kind == EventKind::kGradientReady) {
      dispatcher_.yield_point(rank());
    } else if (event.kind == EventKind::kStepBegin && event.index >= first_scheduled_step_) {
      dispatcher_.begin_scheduling();
    }
  }

  Dispatcher& dispatcher_;
  TraceRecorder& recorder_;
  CollectiveExchange& exchange_;
  SimCommunicator communicator_;
  std::int64_t first_scheduled_step_;
  bool has_died_ = false;
};

class World {
 public:
  World(const WorldOptions& options, const std::function<void(RankContext&)>& body)
      : options_(options),
        body_(body),
        executor_(RankExecutor::of_this_thread()),
        recorder_(clock_, options.keep_trace),
        dispatcher_(options, executor_, clock_, recorder_),
        exchange_(options, dispatcher_, recorder_) {
    result_.ranks.resize(static_cast<std::size_t>(options.world_size));
    for (std::int64_t rank = 0; rank < options.world_size; ++rank) {
      ranks_.emplace_back(dispatcher_, recorder_, exchange_, rank, options);
    }
  }

  WorldResult run(const std::function<void()>& at_deadlock) {
    executor_.prepare(options_.world_size, [this](std::int64_t rank) { return run_rank(rank); });
    dispatcher_.run();
    std::exception_ptr callback_error;
    if (!dispatcher_.exhausted() && !dispatcher_.abandoned()) {
      note_waiting_ranks();
      if (result_.deadlock && at_deadlock) {
        try {
          at_deadlock();
        } catch (...) {
          callback_error = std::current_exception();
        }
      }
    }
    for (std::int64_t rank = 0; rank < options_.world_size; ++rank) {
      if (!dispatcher_.has_ended(rank)) {
        dispatcher_.cancel(rank);
      }
    }
    rethrow_what_is_no_result(callback_error);
    result_.mismatch = exchange_.matcher().mismatch();
    result_.trace = recorder_.take();
    result_.schedule = dispatcher_.schedule();
    result_.num_choices = dispatcher_.num_choices();
    result_.abandoned = dispatcher_.abandoned();
    return std::move(result_);
  }

 private:
  RankResult& result_of(std::int64_t rank) { return result_.ranks[static_cast<std::size_t>(rank)]; }

  // A rank's whole life, on its own thread. Returns who has the turn next.
  std::int64_t run_rank(std::int64_t rank) {
    RankResult& result = result_of(rank);
    {
      const at::ThreadLocalStateGuard inherited = inheritance_.enter();
      recorder_.record(rank, {EventKind::kRankStarted, -1});
      try {
        dispatcher_.throw_if_cancelled(rank);
        body_(ranks_[static_cast<std::size_t>(rank)]);
      } catch (...) {
        result.end = RankEnd::kFailed;
        result.error = std::current_exception();
      }
    }
    // Whatever came out of a cancelled rank: scripts and engines may wrap or swallow exceptions.
    if (dispatcher_.is_cancelled(rank)) {
      result.end = RankEnd::kWaiting;
      result.error = nullptr;
    }
    recorder_.record(rank, {EventKind::kRankEnded, static_cast<std::int64_t>(result.end)});
    if (ranks_[static_cast<std::size_t>(rank)].has_died()) {
      result.end = RankEnd::kDied;
    }
    return dispatcher_.end(rank);
  }

  void note_waiting_ranks() {
    for (std::int64_t rank = 0; rank < options_.world_size; ++rank) {
      if (dispatcher_.is_waiting(rank)) {
        const std::int64_t seq = exchange_.waiting_seq(rank);
        result_.deadlock = true;
        result_of(rank).end = RankEnd::kWaiting;
        result_of(rank).waiting_in = exchange_.matcher().pending(rank, seq);
        result_of(rank).waiting_for = exchange_.matcher().missing(seq);
      }
    }
  }

  void rethrow_what_is_no_result(const std::exception_ptr& callback_error) const {
    for (const RankResult& rank : result_.ranks) {
      if (rank.error) {
        try {
          std::rethrow_exception(rank.error);
        } catch (const InvariantError&) {
          throw;
        } catch (...) {
          // Stays in the rank's result.
        }
      }
    }
    if (dispatcher_.error()) {
      std::rethrow_exception(dispatcher_.error());
    }
    if (dispatcher_.exhausted()) {
      throw InvariantError(
          fmt::format("the simulated world took more than {} decisions and was "
                      "given up as endless",
                      options_.switches_max));
    }
    if (callback_error) {
      std::rethrow_exception(callback_error);
    }
  }

  const WorldOptions& options_;
  const std::function<void(RankContext&)>& body_;
  const ThreadInheritance inheritance_;
  RankExecutor& executor_;
  VirtualClock clock_;
  TraceRecorder recorder_;
  Dispatcher dispatcher_;
  CollectiveExchange exchange_;
  std::deque<SimRank> ranks_;
  WorldResult result_;
};

// The number in a kRankEnded event is documented; it is the enumerator's value.
static_assert(static_cast<int>(RankEnd::kFinished) == 0 &&
              static_cast<int>(RankEnd::kFailed) == 1 && static_cast<int>(RankEnd::kWaiting) == 2);

}  // namespace

WorldResult run_world(const WorldOptions& options, const std::function<void(RankContext&)>& body,
                      const std::function<void()>& at_deadlock) {
  LOCKSTEP_USAGE(options.world_size >= 1 && options.world_size <= kWorldSizeMax,
                 "a world has 1 to {} ranks, not {}", kWorldSizeMax, options.world_size);
  LOCKSTEP_USAGE(static_cast<bool>(body), "a world needs a body to run");
  const OneWorldGuard one_world;
  const SerialTorchGuard serial;
  return World(options, body).run(at_deadlock);
}

}  // namespace lockstep::sim
