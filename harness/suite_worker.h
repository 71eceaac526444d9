// SPDX-License-Identifier: Apache-2.0
// A child process that judges cases, seen from its parent.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/outcome.h"
#include "harness/suite.h"

namespace lockstep::harness {

/// What a child is born with; all of it outlives the worker.
struct SuiteWorkerContext {
  JudgeFunction judge;
  std::function<void()> process_start;  ///< may be empty
  std::function<void()> process_end;    ///< may be empty
};

/// The child leads a process group of its own, so that whatever it starts ends with it, and gets
/// SIGTERM when its parent dies. It ends when its parent closes the connection.
///
/// Protocol, over one socket pair: the parent sends the lengths (8 bytes each) of a case's file,
/// name and text, and then these; the child answers with the length of the result (8 bytes) and the
/// result as JSON.
class SuiteWorker {
 public:
  /// Forks. `parent_fds` are closed in the child: connections of other workers, and the like.
  /// Errors: Error if there is no process to be had.
  SuiteWorker(const SuiteWorkerContext& context, const std::vector<int>& parent_fds);
  /// Ends the child and what it started, if that has not happened: `ask_to_end`, then `reap`.
  ~SuiteWorker();
  SuiteWorker(const SuiteWorker&) = delete;
  SuiteWorker& operator=(const SuiteWorker&) = delete;

  int fd() const { return fd_; }
  pid_t pid() const { return pid_; }
  /// The case in progress, by its number.
  std::optional<std::int64_t> in_flight() const { return in_flight_; }
  /// When to look next whether the case has had its time, by the wall clock.
  double deadline_s() const { return deadline_s_; }
  /// Whether the case in flight has had so much of the processors, or so much of the wall clock
  /// while its process stood still, as with ranks that are processes of their own. Puts the
  /// deadline off where neither is so, for the machine is busy with other things: to 20 times the
  /// limit at most.
  bool has_had_its_time();

  /// `limit_s`: see has_had_its_time. False if the child has ended since its last result. One that
  /// ended before its first case loses it all the same: the case is in flight, and `dead` becomes
  /// true.
  bool hand_out(std::int64_t index, const CaseText& text, double limit_s);

  /// Takes what has arrived; never blocks. The result of the case in flight once it is complete.
  /// Errors: UsageError for bytes that are no result.
  std::optional<CaseResult> receive();

  /// True once the connection has ended.
  bool disconnected() const { return disconnected_; }
  /// True if the child has ended; it stays a zombie until `reap`.
  bool dead() const;

  /// Asks the child to end: an idle one by closing the connection, so that it can tidy up, a busy
  /// one and all that it has started by SIGTERM. `reap` waits for that.
  void ask_to_end();
  /// Waits up to `grace_s` for the child, then kills its group. "SIGSEGV (signal 11)" or "exit
  /// status 3"; `signal` is set to the former's number, or 0.
  std::string reap(double grace_s, int& signal);

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  std::optional<std::int64_t> in_flight_;
  // Of the case in flight. Processor time counts from when it was handed out.
  double limit_s_ = 0.0, deadline_s_ = 0.0, handed_out_at_s_ = 0.0, used_before_s_ = 0.0;
  double looked_at_s_ = 0.0, used_at_look_s_ = 0.0;
  bool has_answered_ = false;
  bool disconnected_ = false;
  std::string received_;
};

}  // namespace lockstep::harness
