// SPDX-License-Identifier: Apache-2.0
// What one rank does wrong on purpose: where, and what was carried out of it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/error.h"
#include "harness/case.h"
#include "harness/position.h"
#include "harness/rank_services.h"
#include "harness/run.h"

namespace lockstep::harness {

/// Thrown by a scripted `raise`.
class ScriptError : public Error {
 public:
  using Error::Error;
};

/// The same, where the script catches it and begins the step anew.
class CaughtError final : public ScriptError {
 public:
  using ScriptError::ScriptError;
};

/// Thrown where a rank is to stand still for ever: it ends there, and keeps its connections, so
/// that to its peers it is as if it stood. Derived from std::exception, and from nothing else, for
/// the reasons of sim::Cancelled.
class StandStill final : public std::exception {
 public:
  /// `waiting`: the collective that never completes; empty if the rank stands outside of one.
  explicit StandStill(std::optional<WaitingIn> waiting = {}) : waiting_(std::move(waiting)) {}
  const char* what() const noexcept override { return "the rank stands still"; }
  const std::optional<WaitingIn>& waiting() const { return waiting_; }

 private:
  std::optional<WaitingIn> waiting_;
};

/// The [[at]] and [[fault]] entries of a case, as far as they are about one rank.
///
/// An entry has a place (rank, step; an event of the script, or a collective; virtual time) and
/// says what happens there. The training loop and the communicator ask at the places they come to,
/// and note what they carried out, so that an entry that never came about can be told. Threads: the
/// rank's own, except `events_done` and `faults_done`, which any thread may call.
class Disturbances {
 public:
  /// References outlive this.
  Disturbances(const Case& value, std::int64_t rank, const Position& position,
               const RankServices& services);

  /// The [[at]] entries that happen before this collective is issued.
  std::vector<std::size_t> events_at(const CollectiveTag& tag) const;
  /// The first [[fault]] that is about this collective. For those that happen at its completion the
  /// time has yet to come: see `fault_is_due`.
  std::optional<std::size_t> fault_at(const CollectiveTag& tag) const;
  bool fault_is_due(std::size_t index) const { return time_has_come(value_.faults[index].from_ms); }
  /// Whether entry `index` of [[at]], whose place was come to, happens there: time and attempt.
  bool is_due(std::size_t index) const;

  /// The step is about to be tried, for the first time or again.
  void begin_attempt(bool is_first) { first_attempt_ = is_first; }

  /// raise, stall and sleep_ms of entry `index` of [[at]]. Errors: ScriptError; StandStill.
  void carry_out(std::size_t index);
  /// What befalls the rank's process by entry `index` of [[fault]] ("exit", "crash", "stop").
  void fail_process(std::size_t index);
  void sleep_ms(std::int64_t duration_ms) const;

  void note_event(std::size_t index) { note(index, events_done_); }
  void note_fault(std::size_t index) { note(index, faults_done_); }
  std::vector<std::int64_t> events_done() const { return list(events_done_); }
  std::vector<std::int64_t> faults_done() const { return list(faults_done_); }

  const Case& value() const { return value_; }
  /// The step that a collective belongs to: its tag's, or else the one that the rank is in.
  std::int64_t step_of(const CollectiveTag& tag) const {
    return tag.step >= 0 ? tag.step : position_.step();
  }

 private:
  bool time_has_come(std::int64_t from_ms) const;
  void note(std::size_t index, std::set<std::int64_t>& done);
  std::vector<std::int64_t> list(const std::set<std::int64_t>& done) const;

  const Case& value_;
  std::int64_t rank_;
  const Position& position_;
  const RankServices& services_;
  bool first_attempt_ = true;
  mutable std::mutex mutex_;
  std::set<std::int64_t> events_done_, faults_done_;
};

/// Issues the `collective` of entry `index` of [[at]], and waits for it.
void issue_scripted(Communicator& communicator, const Case& value, std::size_t index,
                    std::int64_t step);

}  // namespace lockstep::harness
