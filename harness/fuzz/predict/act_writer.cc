// SPDX-License-Identifier: Apache-2.0
// Faults at collectives, by the table of harness/sync/faulty_communicator.h.
#include "harness/fuzz/predict/act_writer.h"

#include <algorithm>

#include "harness/fault_kinds.h"

namespace lockstep::harness::fuzz {

void ActWriter::add(Act act) {
  if (!has_ended_) {
    act.step = step_;
    acts_.push_back(std::move(act));
  }
}

void ActWriter::end(Act::What what, const std::string& error, std::int64_t seq) {
  Act act;
  act.what = what;
  act.error = error;
  act.seq = seq;
  add(std::move(act));
  has_ended_ = true;
}

std::int64_t ActWriter::put(const Issued& issued) {
  Act act;
  act.issued = issued;
  add(std::move(act));
  return num_issued_++;
}

void ActWriter::wait_for(std::int64_t seq) {
  Act act;
  act.what = Act::What::kWait;
  act.seq = seq;
  add(std::move(act));
}

void ActWriter::meet_at_once(const Issued& issued) { wait_for(put(issued)); }

// Construction is in no step; its collectives count for the step that the rank is in.
const FaultSpec* ActWriter::fault_at(const Issued& issued) const {
  for (const FaultSpec& fault : value_.faults) {
    if (!site_of(fault).empty() && site_of(fault) == issued.site && covers(fault.ranks, rank_) &&
        covers(fault.steps, std::max<std::int64_t>(issued.step, step_)) &&
        fault.bucket.value_or(issued.index) == issued.index) {
      return &fault;
    }
  }
  return nullptr;
}

ActWriter::Handle ActWriter::issue(Issued issued) {
  before_issue_(issued);
  const FaultSpec* const fault = fault_at(issued);
  const std::string kind = fault != nullptr ? fault->kind : "";
  if (is_process_fault(kind)) {
    for (std::int64_t seq = 0; seq < num_issued_; ++seq) {
      wait_for(seq);
    }
    fail_process(*fault);
  }
  if (kind == "skip_collective") {
    return {};
  }
  if (kind == "swap_collectives") {
    held_.push_back({issued});
    return {-1, nullptr, held_.size() - 1};
  }
  issued.variant += kind == "wrong_numel" ? 1000 : kind == "wrong_dtype" ? 2000 : 0;
  is_open_ = is_open_ || kind == "skip_wait";  // then what is read is a matter of time
  const Handle handle{put(issued), fault, {}};
  for (HeldBack& held : held_) {
    release(held);
  }
  return handle;
}

void ActWriter::release(HeldBack& held) {
  if (held.seq < 0) {
    held.seq = put(held.issued);
  }
}

void ActWriter::wait(const Handle& handle) {
  if (handle.held) {
    release(held_[*handle.held]);
    wait_for(held_[*handle.held].seq);
    return;
  }
  if (handle.seq < 0) {
    return;
  }
  const std::string kind = handle.fault != nullptr ? handle.fault->kind : "";
  if (kind == "transport_error") {
    end(Act::What::kFail, "peer_lost");
  }
  wait_for(handle.seq);
  if (kind == "cut_link") {
    end(Act::What::kStand, "", handle.seq);
  }
}

void ActWriter::fail_process(const FaultSpec& fault) {
  if (fault.kind == "stop") {
    Act act;
    act.what = Act::What::kStop;
    add(std::move(act));
  } else {
    end(Act::What::kDie);
  }
}

}  // namespace lockstep::harness::fuzz
