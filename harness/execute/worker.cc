// SPDX-License-Identifier: Apache-2.0
// A worker process: one thread runs a rank, the other one answers the parent.
#include "harness/execute/worker.h"

#include <ATen/Parallel.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/launch_error.h"
#include "harness/execute/transport.h"
#include "harness/execute/watched_communicator.h"
#include "harness/execute/worker_protocol.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

constexpr int kBeatMs = 50;

class RealBody final : public WorkerBody {
 public:
  RealBody(const Program& program, std::int64_t rank, RankServices services)
      : body_(program, rank, std::move(services)) {}
  void run() override { body_.run(); }
  RankRun position() const override { return body_.position(); }
  RankRun take_record() override { return body_.take_record(); }
  std::int64_t progress() const override { return body_.progress(); }

 private:
  RankBody body_;
};

/// Tells the parent of every step, so that it knows the last one of a worker that dies.
class StepTeller final : public Observer {
 public:
  explicit StepTeller(Channel& channel) : channel_(channel) {}
  void on_event(const Event& event) override {
    if (event.kind == EventKind::kStepBegin) {
      channel_.send(MessageKind::kStep, encode(StepNote{event.index}));
    }
  }

 private:
  Channel& channel_;  // outlives this: the worker's own
};

// How long a stopped process stays so after its peers must have lost patience.
constexpr int kStopTimeouts = 3;

/// Stops this process; a child of it lets it go on. Everything in the child is safe after a fork.
void stop_for(std::int64_t duration_ms) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  LOCKSTEP_CHECK(child >= 0, "fork failed with {}", errno);
  if (child == 0) {
    // The executor must see the end of this process if it is killed meanwhile.
    constexpr int kDescriptorsMax = 1024;
    for (int descriptor = 0; descriptor < kDescriptorsMax; ++descriptor) {
      ::close(descriptor);
    }
    const timespec pause{duration_ms / 1000, (duration_ms % 1000) * 1'000'000};
    ::nanosleep(&pause, nullptr);
    if (::getppid() == parent) {
      ::kill(parent, SIGCONT);
    }
    ::_exit(0);
  }
  ::kill(parent, SIGSTOP);
  ::waitpid(child, nullptr, 0);
}

Case case_of(const CaseOrder& order) {
  const std::vector<NamedCase> cases = parse_scenario_text(order.case_toml, "case");
  LOCKSTEP_CHECK(cases.size() == 1, "an order holds {} cases", cases.size());
  return cases.front().value;
}

/// How a rank ends that never met its peers.
RankRun not_connected(const CaseOrder& order, const std::string& kind, const std::string& message) {
  RankRun record;
  record.rank = order.rank;
  record.ending = Ending::kFailed;
  record.error_kind = kind;
  record.error_message = message;
  record.at_phase = "rendezvous";
  return record;
}

class Worker {
 public:
  explicit Worker(WorkerOptions options)
      : options_(std::move(options)), channel_(options_.socket_fd) {
    if (!options_.make_body) {
      options_.make_body = make_rank_body;
    }
  }

  /// The rank's thread.
  [[noreturn]] void serve() {
    std::thread([this] { listen(); }).detach();
    for (;;) {
      CaseOrder order;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return order_.has_value(); });
        order = *std::exchange(order_, std::nullopt);
      }
      try {
        take_part(order);
      } catch (const std::exception& error) {
        channel_.send(MessageKind::kBroken, encode(BrokenNote{error.what()}));
        // The parent ends this process, or its own end does.
        for (;;) {
          ::pause();
        }
      }
      channel_.send(MessageKind::kClosed);
    }
  }

 private:
  void take_part(const CaseOrder& order);
  void give_up_meeting(const CaseOrder& order, const std::string& kind,
                       const std::exception& error);
  void run_body(const CaseOrder& order, const Program& program);
  void await_end_of_case();
  RankServices services(std::int64_t timeout_ms);

  void listen();
  bool beat();
  void handle(const Message& message);
  void answer(const WhereQuery& query);
  std::int64_t progress();
  [[noreturn]] void parent_is_gone();

  WorkerOptions options_;
  Channel channel_;
  Transports transports_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CaseOrder> order_;
  bool over_ = false;                                  ///< the parent said so
  std::unique_ptr<WatchedCommunicator> communicator_;  ///< while a case is in progress
  WorkerBody* body_ = nullptr;                         ///< while it runs
  std::atomic<bool> naps_{false};                      ///< a scripted pause is in progress
  std::int64_t looks_at_naps_ = 0;                     ///< a rank that sleeps on purpose is alive
  std::int64_t last_beat_ = 0;                         ///< progress at the last sign of life
};

void Worker::take_part(const CaseOrder& order) {
  const Program program = compile_subject(case_of(order));
  if (options_.before_connect) {
    options_.before_connect(program.value, order.rank);
  }
  try {
    auto communicator = std::make_unique<WatchedCommunicator>(
        transports_.connect(order, program.value.world.check_tags));
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator_ = std::move(communicator);
  } catch (const CommError& error) {
    const bool is_late = dynamic_cast<const TimedOut*>(&error) != nullptr;
    give_up_meeting(order,
                    is_late && program.value.launch.is_asked_for() ? "timed_out" : "not_connected",
                    error);
    return;
  } catch (const LaunchError& error) {
    give_up_meeting(order, error.kind(), error);
    return;
  }
  channel_.send(MessageKind::kConnected);
  run_body(order, program);
  await_end_of_case();
  std::unique_ptr<WatchedCommunicator> communicator;
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator = std::move(communicator_);
}

void Worker::give_up_meeting(const CaseOrder& order, const std::string& kind,
                             const std::exception& error) {
  const RankRun record = not_connected(order, kind, error.what());
  channel_.send(MessageKind::kEnded, encode(RankEnded{0, {}, serialize(record)}));
  await_end_of_case();
}

void Worker::run_body(const CaseOrder& order, const Program& program) {
  StepTeller observer(channel_);
  RankServices lent = services(program.value.world.timeout_ms);
  lent.observer = &observer;
  const auto body = options_.make_body(program, order.rank, std::move(lent));
  RankEnded ended;
  {
    // Shuts the listening thread out before the body is destroyed, also if it throws.
    struct Publication {
      Worker& worker;
      Publication(Worker& the_worker, WorkerBody* the_body) : worker(the_worker) { set(the_body); }
      ~Publication() { set(nullptr); }
      void set(WorkerBody* the_body) {
        const std::lock_guard<std::mutex> lock(worker.mutex_);
        worker.body_ = the_body;
      }
    } publication(*this, body.get());
    // An InvariantError passes: the process does not outlive it.
    body->run();
  }
  RankRun record = body->take_record();
  record.listens_on = transports_.listens_on();
  ended.record = serialize(record);
  const WatchedCommunicator::Standing standing = communicator_->standing();
  ended.posted = standing.posted;
  ended.failed_in = standing.failed_in;
  channel_.send(MessageKind::kEnded, encode(ended));
}

RankServices Worker::services(std::int64_t timeout_ms) {
  RankServices lent;
  lent.communicator = communicator_.get();
  lent.sleep = [this](std::int64_t ns) {
    naps_ = true;
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    naps_ = false;
  };
  lent.fail_process = [timeout_ms](const std::string& kind) {
    if (kind == "exit") {
      ::_exit(3);
    }
    if (kind == "crash") {
      ::kill(::getpid(), SIGKILL);
    }
    stop_for(kStopTimeouts * timeout_ms);
  };
  return lent;
}

void Worker::await_end_of_case() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return over_; });
  over_ = false;
}

void Worker::listen() {
  pollfd readable{channel_.fd(), POLLIN, 0};
  for (;;) {
    ::poll(&readable, 1, beat() ? kBeatMs : -1);
    const bool is_alive = channel_.pump();
    while (const std::optional<Message> message = channel_.next()) {
      handle(*message);
    }
    if (!is_alive) {
      parent_is_gone();
    }
  }
}

/// Gives a sign of life if there is something new. Returns false while no body runs.
bool Worker::beat() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (body_ == nullptr) {
    return false;
  }
  const std::int64_t now = progress();
  if (now != last_beat_) {
    last_beat_ = now;
    // Under the lock, so that no beat follows the end of the rank.
    channel_.send(MessageKind::kBeat);
  }
  return true;
}

/// Precondition: mutex_ is held.
std::int64_t Worker::progress() {
  looks_at_naps_ += naps_ ? 1 : 0;
  return looks_at_naps_ + communicator_->standing().progress + body_->progress();
}

void Worker::answer(const WhereQuery& query) {
  Whereabouts where;
  where.round = query.round;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (body_ != nullptr) {
      const WatchedCommunicator::Standing standing = communicator_->standing();
      where.progress = progress();
      where.posted = standing.posted;
      where.waiting = standing.waiting;
      where.position = serialize(body_->position());
    }
  }
  channel_.send(MessageKind::kWhereabouts, encode(where));
}

void Worker::parent_is_gone() {
  // Other workers, or this one's own rank, may be writing into the directory meanwhile.
  constexpr int kTriesMax = 1000;
  std::error_code error;
  for (int i = 0; i < kTriesMax && std::filesystem::exists(options_.directory, error); ++i) {
    std::filesystem::remove_all(options_.directory, error);
  }
  ::_exit(0);
}

void Worker::handle(const Message& message) {
  switch (message.kind) {
    case MessageKind::kCase: {
      const std::lock_guard<std::mutex> lock(mutex_);
      order_ = decode<CaseOrder>(message.payload);
      changed_.notify_all();
      return;
    }
    case MessageKind::kWhere:
      answer(decode<WhereQuery>(message.payload));
      return;
    case MessageKind::kOver: {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (communicator_ != nullptr) {
        // Unwinds a rank that is stuck in a collective.
        communicator_->abandon();
      }
      over_ = true;
      changed_.notify_all();
      return;
    }
    default:
      throw InvariantError("a worker was sent a message that is meant for its parent");
  }
}

}  // namespace

std::unique_ptr<WorkerBody> make_rank_body(const Program& program, std::int64_t rank,
                                           RankServices services) {
  return std::make_unique<RealBody>(program, rank, std::move(services));
}

void serve_as_worker(WorkerOptions options) {
  at::set_num_threads(1);
  Worker worker(std::move(options));
  worker.serve();
}

}  // namespace lockstep::harness
