// SPDX-License-Identifier: Apache-2.0
// Many cases in several processes, with results in order.
#include "harness/suite.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <utility>

#include "core/check.h"
#include "harness/scenario.h"
#include "harness/signals_as_bytes.h"
#include "harness/suite_worker.h"
#include "harness/wall_clock.h"

namespace lockstep::harness {

/// The processes of a suite and the signals that end them.
class SuiteChildren {
 public:
  SuiteChildren(const SuiteOptions& options, const JudgeFunction& judge)
      : context_{judge, options.process_start, options.process_end} {
    workers.resize(static_cast<std::size_t>(options.jobs));
  }
  ~SuiteChildren() { end(); }
  SuiteChildren(const SuiteChildren&) = delete;
  SuiteChildren& operator=(const SuiteChildren&) = delete;

  void start(std::unique_ptr<SuiteWorker>& worker) {
    std::vector<int> fds = {signals.fd()};
    for (const auto& other : workers) {
      if (other) fds.push_back(other->fd());
    }
    worker = std::make_unique<SuiteWorker>(context_, fds);
  }

  /// All at once, so that their times to end do not add up.
  void end() {
    for (auto& worker : workers) {
      if (worker) worker->ask_to_end();
    }
    for (auto& worker : workers) worker.reset();
  }

  /// The same for those with a case that nobody wants to know any more.
  void end_busy() {
    for (auto& worker : workers) {
      if (worker && worker->in_flight()) worker->ask_to_end();
    }
    for (auto& worker : workers) {
      if (worker && worker->in_flight()) worker.reset();
    }
  }

  /// A first signal stays.
  void take_signal() {
    const int ending = signals.take();
    if (signal == 0) signal = ending;
  }

  SignalsAsBytes signals;
  int signal = 0;  ///< the first that has come
  std::vector<std::unique_ptr<SuiteWorker>> workers;

 private:
  const SuiteWorkerContext context_;
};

namespace {

/// A case that is to be handed out, or has been.
struct Pending {
  NamedCase named;
  std::string text;
};

/// One call of Suite::run. Cases are handed out in ascending order; results wait in `ready_` until
/// all before them have been passed on, so that `next_out_` is the first case not passed on.
class SuiteRun {
 public:
  SuiteRun(CaseSource& source, const SuiteOptions& options, const SuiteEvents& events)
      : source_(source), options_(options), events_(events) {}

  SuiteSummary run_here(const JudgeFunction& judge) {
    const double start_s = wall_seconds();
    summary_.jobs = summary_.cores = 1;
    if (options_.process_start) options_.process_start();
    while (!stopped_) {
      const std::optional<NamedCase> named = source_.next();
      if (!named) break;
      take_result(num_given_++, judge_one(*named, judge));
    }
    if (options_.process_end) options_.process_end();
    return summary(start_s);
  }

  SuiteSummary run_in(SuiteChildren& children) {
    const double start_s = wall_seconds();
    children.take_signal();
    summary_.jobs = options_.jobs;
    summary_.cores = std::min(options_.jobs, available_cores());
    while (!stopped_ && children.signal == 0) {
      prepare();
      for (std::size_t slot = 0; slot < children.workers.size() && pending_; ++slot) {
        feed(children, slot);
        prepare();
      }
      if (!pending_ && in_flight_.empty()) break;
      wait(children.signals.fd(), children.workers);
      children.take_signal();
      for (auto& worker : children.workers) check(worker);
    }
    children.end_busy();
    if (children.signal != 0) children.end();
    summary_.signal = children.signal;
    return summary(start_s);
  }

 private:
  SuiteSummary summary(double start_s) {
    summary_.num_cases = num_given_;
    summary_.seconds = wall_seconds() - start_s;
    return summary_;
  }

  /// Has the next case at hand before a process is there to take it.
  void prepare() {
    // After a failure, with fail_fast, only what lies before it is still of interest.
    if (pending_ || num_given_ > last_wanted_) return;
    std::optional<NamedCase> named = source_.next();
    if (!named) return;
    pending_ = Pending{*std::move(named), {}};
    pending_->text = print_case(pending_->named.value);
    ++num_given_;
  }

  /// Gives an idle worker the next case, and starts it if need be.
  void feed(SuiteChildren& children, std::size_t slot) {
    auto& worker = children.workers[slot];
    const std::int64_t index = num_given_ - 1;
    if (index > last_wanted_) return;
    if (worker && worker->in_flight()) return;
    if (!worker) children.start(worker);
    const CaseText text{pending_->named.file, pending_->named.name, pending_->text};
    if (events_.case_begins) events_.case_begins(static_cast<std::int64_t>(slot), text);
    if (worker->hand_out(index, text, options_.case_timeout_s)) {
      in_flight_.emplace(index, *std::move(pending_));
      pending_.reset();
    } else {
      worker.reset();  // It died between two cases; the next round starts another.
    }
  }

  /// Sleeps until something arrives, a process ends, or a case's time is over.
  void wait(int signal_fd, const std::vector<std::unique_ptr<SuiteWorker>>& workers) {
    std::vector<pollfd> polled = {{signal_fd, POLLIN, 0}};
    double timeout_s = 3600.0;
    const double now_s = wall_seconds();
    for (const auto& worker : workers) {
      if (!worker) {
        if (pending_ && num_given_ - 1 <= last_wanted_) timeout_s = 0.0;
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
    std::optional<CaseResult> result;
    try {
      result = worker->receive();
    } catch (const UsageError& error) {
      result = undecided(in_flight_.at(*index).named, error.what());
    }
    // What an event throws is no matter of the worker.
    if (result) take_result(*index, *std::move(result));
    const bool over_time = worker->has_had_its_time();
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
    CaseResult result = undecided(in_flight_.at(index).named, what);
    if (end.empty()) result.seconds = options_.case_timeout_s;
    if (signal != 0) result.outcome.kind = OutcomeKind::kCrash;
    return result;
  }

  void take_result(std::int64_t index, CaseResult result) {
    in_flight_.erase(index);
    const Verdict verdict = verdict_of(result);
    const bool bad = verdict == Verdict::kFailed || verdict == Verdict::kDefect;
    if ((bad && options_.fail_fast) || (events_.ends_at && events_.ends_at(result))) {
      last_wanted_ = std::min(last_wanted_, index);
    }
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

  static constexpr double kGrace_s = 2.0;

  CaseSource& source_;
  const SuiteOptions& options_;
  const SuiteEvents& events_;
  std::optional<Pending> pending_;
  std::map<std::int64_t, Pending> in_flight_;
  std::map<std::int64_t, CaseResult> ready_;
  std::int64_t num_given_ = 0, next_out_ = 0, num_done_ = 0;
  std::int64_t last_wanted_ = INT64_MAX;  ///< the first behind which nothing is wanted
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

std::optional<NamedCase> ListedCases::next() {
  if (num_given_ == cases_.size()) return std::nullopt;
  return cases_[num_given_++];
}

Suite::Suite(const SuiteOptions& options, const JudgeFunction& judge)
    : options_(options), judge_(judge) {
  LOCKSTEP_USAGE(options.jobs >= 1, "jobs = {}, must be at least 1", options.jobs);
  LOCKSTEP_USAGE(options.case_timeout_s > 0, "a case needs some time, not {} s",
                 options.case_timeout_s);
  if (!options.in_process) children_ = std::make_unique<SuiteChildren>(options_, judge_);
}

Suite::~Suite() = default;

SuiteSummary Suite::run(CaseSource& source, const SuiteEvents& events) {
  SuiteRun run(source, options_, events);
  return children_ ? run.run_in(*children_) : run.run_here(judge_);
}

SuiteSummary run_suite(const std::vector<NamedCase>& cases, const SuiteOptions& options,
                       const JudgeFunction& judge, const SuiteEvents& events) {
  const auto num_cases = static_cast<std::int64_t>(cases.size());
  SuiteOptions needed = options;
  needed.jobs = std::min(options.jobs, std::max<std::int64_t>(1, num_cases));
  ListedCases source(cases);
  SuiteSummary summary = Suite(needed, judge).run(source, events);
  summary.num_cases = num_cases;
  return summary;
}

std::int64_t available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace lockstep::harness
