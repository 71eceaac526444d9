// SPDX-License-Identifier: Apache-2.0
// N deterministic ranks: a thread each, exactly one of which runs at a time.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/collective_description.h"
#include "core/communicator.h"
#include "core/observer.h"
#include "sim/scheduler.h"
#include "sim/trace.h"

namespace lockstep::sim {

struct WorldOptions {
  std::int64_t world_size = 1;
  ScheduleSpec schedule;
  /// Takes the decisions in the place of `schedule`, if given; outlives the run.
  Scheduler* scheduler = nullptr;
  /// Until a rank tells its observer that this step begins, all choices are the default ones and
  /// nobody is asked. -1: from the start.
  std::int64_t first_scheduled_step = -1;
  /// Compare tags across ranks. Off: only kind, op, numel, dtype and root are compared, so that
  /// wrongly paired collectives of equal shape mix their data as a real transport would.
  bool check_tags = true;
  /// Decisions of the scheduler (yield points where a rank goes on included) after which a run is
  /// given up as endless (InvariantError).
  std::int64_t switches_max = 10'000'000;
  /// Virtual time after which the wait for a collective that some rank has not issued ends with
  /// TimedOut; ranks may be late for it that long. 0: there is no limit, so that it is a deadlock.
  std::int64_t timeout_ns = 0;
  /// Keep every event for printing; without it only the hash is kept.
  bool keep_trace = false;
};

/// What a rank's collective is, as its peers and reports see it.
using CollectiveInfo = CollectiveDescription;

/// In words: "all_reduce (bucket 0, step 2, 42 x Float)", "broadcast (buffers, 8 x Long, from rank
/// 0)", "barrier (script)".
std::string to_string(const CollectiveInfo& info);

enum class RankEnd { kFinished, kFailed, kWaiting, kDied };

/// How one rank ended.
struct RankResult {
  RankEnd end = RankEnd::kFinished;
  std::exception_ptr error;                  ///< kFailed: what the body threw
  std::optional<CollectiveInfo> waiting_in;  ///< kWaiting: the collective it waits in
  std::vector<std::int64_t> waiting_for;     ///< kWaiting: ranks that have not issued it
};

/// The first pair of ranks that met in one collective with different ideas of it.
struct Mismatch {
  std::int64_t first_rank = 0, second_rank = 0;
  CollectiveInfo first, second;
};

struct WorldResult {
  std::vector<RankResult> ranks;
  bool deadlock = false;  ///< some rank waits and nobody can run
  std::optional<Mismatch> mismatch;
  Trace trace;
  /// The run's schedule, for kReplay: it gives the same run again.
  Schedule schedule;
  std::int64_t num_choices = 0;  ///< decisions with more than one actor
  bool abandoned = false;        ///< given up by the scheduler; nothing else here means anything
};

/// Handed to the body of each rank. Threads: the rank's own thread only.
class RankContext {
 public:
  virtual ~RankContext() = default;
  virtual std::int64_t rank() const = 0;
  virtual Communicator& communicator() = 0;
  /// Receives core's and the training loop's events, into the trace; where a gradient is ready is a
  /// yield point, as is the issue of every collective and the beginning and end of every wait.
  virtual Observer& observer() = 0;
  /// Gives the scheduler a chance to run another rank.
  virtual void yield() = 0;
  /// Lets virtual time pass for this rank; other ranks run meanwhile.
  virtual void sleep_ns(std::int64_t duration_ns) = 0;
  /// Virtual time since the world began.
  virtual std::int64_t now_ns() const = 0;
  /// The rank's process ends here: what it has not issued it never will, and whoever waits for
  /// that, or comes to, gets PeerLost. Unwinds the body; the rank ends as kDied.
  [[noreturn]] virtual void die() = 0;
};

/// Runs `body` once per rank until all have ended or nobody can run.
///
/// Determinism: same options and body, same bits, same schedule, same trace hash.
/// LibTorch's global generator is virtual: each rank has its own, all starting from the state the
/// caller's has; the caller's is restored at the end.
/// Every rank also starts with the caller's thread-local LibTorch state (grad mode) and
/// floating-point modes, with all floating-point flags clear; LibTorch runs on one thread.
/// Deadlock: found the moment nobody can run. `at_deadlock`, if given, is called on the caller's
/// thread while every waiting rank is parked, so it may read their state; then the waiting ranks
/// are unwound, one after the other: seams they stand in or come to throw an exception that is not
/// a lockstep::Error, and whatever comes out of their bodies they end as kWaiting.
/// Errors: what a body throws is kept in its RankResult, except that InvariantError is rethrown
/// when all ranks have ended, and so is what `at_deadlock` throws. UsageError for a world size out
/// of range (1 to 1024), or if a world is already running in this process.
WorldResult run_world(const WorldOptions& options, const std::function<void(RankContext&)>& body,
                      const std::function<void()>& at_deadlock = {});

}  // namespace lockstep::sim
