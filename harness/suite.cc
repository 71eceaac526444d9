// SPDX-License-Identifier: Apache-2.0
// Many cases in several processes, with results in order.
#include "harness/suite.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>
#include <map>
#include <memory>

#include "core/check.h"
#include "harness/scenario.h"
#include "harness/suite_worker.h"
#include "harness/wall_clock.h"

namespace lockstep::harness {

namespace {

// Where the handler writes; a handler can reach nothing else. -1: nobody listens.
std::atomic<int> signal_pipe_fd{-1};

extern "C" void write_signal(int signal) {
  const int saved_errno = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe already holds enough to wake the reader.
  [[maybe_unused]] const ssize_t written = write(signal_pipe_fd.load(), &byte, 1);
  errno = saved_errno;
}

/// While it lives, the signals that concern a suite arrive as bytes on `fd()`. Handlers, not a
/// blocked mask: LibTorch's libraries may run threads of their own, to which a signal that this
/// thread blocks would be delivered, with its usual effect.
class SignalsAsBytes {
 public:
  SignalsAsBytes() {
    if (pipe2(fds_, O_CLOEXEC | O_NONBLOCK) != 0) {
      throw Error(fmt::format("no pipe for signals: {}", std::strerror(errno)));
    }
    old_pipe_ = signal_pipe_fd.exchange(fds_[1]);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action {};
      sigaction(kSignals[i], nullptr, &old_actions_[i]);
      action.sa_handler = write_signal;
      action.sa_flags = SA_RESTART;
      // What the caller ignores (nohup does) stays ignored; but a child that ends leaves no status
      // behind where SIGCHLD is ignored.
      if (old_actions_[i].sa_handler != SIG_IGN || kSignals[i] == SIGCHLD) {
        sigaction(kSignals[i], &action, nullptr);
      }
    }
  }
  ~SignalsAsBytes() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], &old_actions_[i], nullptr);
    }
    signal_pipe_fd = old_pipe_;
    close(fds_[0]);
    close(fds_[1]);
  }
  SignalsAsBytes(const SignalsAsBytes&) = delete;
  SignalsAsBytes& operator=(const SignalsAsBytes&) = delete;

  int fd() const { return fds_[0]; }

  /// Takes all that have come; the first that asks to end, or 0.
  int take() {
    int ending = 0;
    unsigned char byte = 0;
    while (read(fds_[0], &byte, 1) == 1) {
      if (byte != SIGCHLD && ending == 0) ending = byte;
    }
    return ending;
  }

 private:
  static constexpr std::array<int, 4> kSignals = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
  int fds_[2] = {-1, -1};
  int old_pipe_ = -1;
  std::array<struct sigaction, 4> old_actions_{};
};

/// One call of run_suite. Cases are handed out in ascending order; results wait in `ready_` until
/// all before them have been passed on, so that `next_out_` is the first case not passed on.
class SuiteRun {
 public:
  SuiteRun(const std::vector<NamedCase>& cases, const SuiteOptions& options,
           const JudgeFunction& judge, const SuiteEvents& events)
      : cases_(cases),
        options_(options),
        events_(events),
        num_cases_(static_cast<std::int64_t>(cases.size())),
        context_{&cases, judge, options.process_start, options.process_end} {
    summary_.num_cases = num_cases_;
    summary_.jobs = std::max<std::int64_t>(1, std::min(options.jobs, num_cases_));
    summary_.cores = std::min(summary_.jobs, available_cores());
  }

  SuiteSummary run() {
    const double start_s = wall_seconds();
    if (options_.in_process) {
      run_here();
    } else {
      run_in_children();
    }
    summary_.seconds = wall_seconds() - start_s;
    return summary_;
  }

 private:
  void run_here() {
    summary_.jobs = summary_.cores = 1;
    if (options_.process_start) options_.process_start();
    for (std::int64_t i = 0; i < num_cases_ && !stopped_; ++i) {
      take_result(i, judge_one(case_at(i), context_.judge));
    }
    if (options_.process_end) options_.process_end();
  }

  void run_in_children() {
    SignalsAsBytes signals;
    workers_.resize(static_cast<std::size_t>(summary_.jobs));
    while (!stopped_ && next_out_ < num_cases_) {
      for (auto& worker : workers_) feed(worker, signals.fd());
      wait(signals.fd());
      summary_.signal = signals.take();
      for (auto& worker : workers_) check(worker);
      if (summary_.signal != 0) break;
    }
    // All at once, so that their times to end do not add up.
    for (auto& worker : workers_) {
      if (worker) worker->ask_to_end();
    }
    workers_.clear();
  }

  /// Gives an idle worker the next case, and starts it if need be.
  void feed(std::unique_ptr<SuiteWorker>& worker, int signal_fd) {
    // After a failure, with fail_fast, only what lies before it is still of interest.
    if (next_in_ >= num_cases_ || next_in_ > last_wanted_) return;
    if (worker && worker->in_flight()) return;
    if (!worker) {
      std::vector<int> fds = {signal_fd};
      for (const auto& other : workers_) {
        if (other) fds.push_back(other->fd());
      }
      worker = std::make_unique<SuiteWorker>(context_, fds);
    }
    if (worker->hand_out(next_in_, wall_seconds() + options_.case_timeout_s)) {
      ++next_in_;
    } else {
      worker.reset();  // It died between two cases; the next round starts another.
    }
  }

  /// Sleeps until something arrives, a process ends, or a case's time is over.
  void wait(int signal_fd) {
    std::vector<pollfd> polled = {{signal_fd, POLLIN, 0}};
    double timeout_s = 3600.0;
    const double now_s = wall_seconds();
    for (const auto& worker : workers_) {
      if (!worker) {
        if (next_in_ < num_cases_ && next_in_ <= last_wanted_) timeout_s = 0.0;
        continue;
      }
      polled.push_back({worker->fd(), POLLIN, 0});
      if (worker->in_flight()) timeout_s = std::min(timeout_s, worker->deadline_s() - now_s);
    }
    const int timeout_ms = static_cast<int>(std::ceil(std::max(timeout_s, 0.0) * 1000.0));
    poll(polled.data(), polled.size(), timeout_ms);
  }

  /// What has become of a worker: a result, an end, or too much time.
  void check(std::unique_ptr<SuiteWorker>& worker) {
    if (!worker) return;
    const std::optional<std::int64_t> index = worker->in_flight();
    // Death is looked at before the connection: what a process sent before it died has arrived.
    const bool dead = worker->dead();
    try {
      if (auto result = worker->receive()) take_result(*index, std::move(*result));
    } catch (const UsageError& error) {
      take_result(*index, undecided(case_at(*index), error.what()));
    }
    const bool over_time = worker->in_flight() && wall_seconds() > worker->deadline_s();
    if (!dead && !worker->disconnected() && !over_time) return;
    const std::optional<std::int64_t> lost = worker->in_flight();
    int signal = 0;
    std::string end;
    if (dead || worker->disconnected()) {
      end = worker->reap(kGrace_s, signal);
    } else {
      worker->ask_to_end();
      worker->reap(kGrace_s, signal);
      signal = 0;  // Ours.
    }
    worker.reset();
    if (lost) take_result(*lost, lost_case(*lost, end, signal));
  }

  /// `end` is empty for a case that took too long.
  CaseResult lost_case(std::int64_t index, const std::string& end, int signal) const {
    const std::string what =
        end.empty() ? fmt::format("not judged within {} s (--case-timeout); its process was ended",
                                  options_.case_timeout_s)
                    : fmt::format("the process that judged this case ended with {}", end);
    CaseResult result = undecided(case_at(index), what);
    if (end.empty()) result.seconds = options_.case_timeout_s;
    if (signal != 0) result.outcome.kind = OutcomeKind::kCrash;
    return result;
  }

  void take_result(std::int64_t index, CaseResult result) {
    const Verdict verdict = verdict_of(result);
    const bool bad = verdict == Verdict::kFailed || verdict == Verdict::kDefect;
    if (bad && options_.fail_fast) last_wanted_ = std::min(last_wanted_, index);
    ready_.emplace(index, std::move(result));
    ++num_done_;
    if (events_.progress) events_.progress(num_done_);
    for (auto it = ready_.find(next_out_); it != ready_.end() && !stopped_;
         it = ready_.find(next_out_)) {
      tally(it->second, summary_);
      if (events_.case_done) events_.case_done(it->second);
      stopped_ = next_out_ == last_wanted_;
      summary_.stopped_at_failure = stopped_;
      ready_.erase(it);
      ++next_out_;
    }
  }

  const NamedCase& case_at(std::int64_t index) const {
    return cases_.at(static_cast<std::size_t>(index));
  }

  static constexpr double kGrace_s = 2.0;

  const std::vector<NamedCase>& cases_;
  const SuiteOptions& options_;
  const SuiteEvents& events_;
  const std::int64_t num_cases_;
  const SuiteWorkerContext context_;
  std::vector<std::unique_ptr<SuiteWorker>> workers_;
  std::map<std::int64_t, CaseResult> ready_;
  std::int64_t next_in_ = 0, next_out_ = 0, num_done_ = 0;
  std::int64_t last_wanted_ = INT64_MAX;  ///< the first failure, with fail_fast
  bool stopped_ = false;
  SuiteSummary summary_;
};

}  // namespace

CaseResult undecided(const NamedCase& named, const std::string& internal_error) {
  CaseResult result;
  result.file = named.file;
  result.name = named.name;
  result.title = named.value.title;
  result.replay_toml = print_case(named.value);
  result.outcome.kind = OutcomeKind::kError;
  result.outcome.reason = internal_error;
  result.internal_error = internal_error;
  return result;
}

CaseResult judge_one(const NamedCase& named, const JudgeFunction& judge) {
  const double start_s = wall_seconds();
  CaseResult result;
  try {
    result = judge(named);
  } catch (const std::exception& error) {
    result = undecided(named, error.what());
  }
  result.seconds = wall_seconds() - start_s;
  return result;
}

SuiteSummary run_suite(const std::vector<NamedCase>& cases, const SuiteOptions& options,
                       const JudgeFunction& judge, const SuiteEvents& events) {
  LOCKSTEP_USAGE(options.jobs >= 1, "jobs = {}, must be at least 1", options.jobs);
  LOCKSTEP_USAGE(options.case_timeout_s > 0, "a case needs some time, not {} s",
                 options.case_timeout_s);
  return SuiteRun(cases, options, judge, events).run();
}

std::int64_t available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace lockstep::harness
