// SPDX-License-Identifier: Apache-2.0
// What one rank does, act by act: collectives, and what goes wrong with them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/fuzz/predict/protocol.h"

namespace lockstep::harness::fuzz {

/// Writes down the acts of one rank of a case. What comes after its end is passed over.
class ActWriter {
 public:
  /// `before_issue` is called before each collective, faults or not. `value` outlives this.
  ActWriter(const Case& value, std::int64_t rank, std::function<void(const Issued&)> before_issue)
      : value_(value), rank_(rank), before_issue_(std::move(before_issue)) {}

  /// What becomes of a wait.
  struct Handle {
    std::int64_t seq = -1;             ///< -1: nothing to wait for
    const FaultSpec* fault = nullptr;  ///< that happens at completion
    std::optional<std::size_t> held;   ///< held back: not issued yet
  };

  void enter_step(std::int64_t step) { step_ = step; }
  std::int64_t step() const { return step_; }

  /// Issues it, unless a fault keeps it from that, and with the fault of its place.
  Handle issue(Issued issued);
  void wait(const Handle& handle);
  /// Both, without looking for faults.
  void meet_at_once(const Issued& issued);
  void meet_in(const char* collective, const char* site) {
    wait(issue({collective, site, step_, 0, 0}));
  }

  void end(Act::What what, const std::string& error = "", std::int64_t seq = -1);
  bool has_ended() const { return has_ended_; }
  /// What befalls the process.
  void fail_process(const FaultSpec& fault);

  /// The rules do not say what comes of this.
  void leave_open() { is_open_ = true; }
  bool is_open() const { return is_open_; }

  std::vector<Act> take() { return std::move(acts_); }

 private:
  struct HeldBack {
    Issued issued;
    std::int64_t seq = -1;
  };

  void add(Act act);
  std::int64_t put(const Issued& issued);
  void wait_for(std::int64_t seq);
  const FaultSpec* fault_at(const Issued& issued) const;
  void release(HeldBack& held);

  const Case& value_;
  std::int64_t rank_;
  std::function<void(const Issued&)> before_issue_;
  std::vector<Act> acts_;
  std::vector<HeldBack> held_;
  std::int64_t num_issued_ = 0;
  std::int64_t step_ = -1;
  bool has_ended_ = false;
  bool is_open_ = false;
};

}  // namespace lockstep::harness::fuzz
