// SPDX-License-Identifier: Apache-2.0
// Who is active, what joined ranks do meanwhile, and how it ends.
#include "core/join.h"

#include <torch/types.h>

#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

Communicator& common_communicator(const std::vector<Joinable*>& joinables) {
  LOCKSTEP_USAGE(!joinables.empty(), "join needs at least one joinable");
  for (Joinable* joinable : joinables) {
    LOCKSTEP_USAGE(joinable != nullptr, "a joinable is null");
    LOCKSTEP_USAGE(&joinable->join_communicator() == &joinables.front()->join_communicator(),
                   "all joinables of a join must share one communicator: join them one by one");
  }
  return joinables.front()->join_communicator();
}

// Between `enter_join` and `leave_join`, for those that were entered.
class EnteredJoinables {
 public:
  EnteredJoinables() = default;
  ~EnteredJoinables() {
    for (Joinable* joinable : entered_) {
      joinable->leave_join();
    }
  }
  EnteredJoinables(const EnteredJoinables&) = delete;
  EnteredJoinables& operator=(const EnteredJoinables&) = delete;

  void enter(Joinable& joinable, JoinContext& context) {
    joinable.enter_join(context);
    entered_.push_back(&joinable);
  }

 private:
  std::vector<Joinable*> entered_;
};

}  // namespace

JoinContext::JoinContext(std::vector<Joinable*> joinables, const JoinOptions& options)
    : joinables_(std::move(joinables)),
      options_(options),
      communicator_(common_communicator(joinables_)) {}

void JoinContext::post(CallSite site, std::int64_t value) {
  result();  // of the notification before, so that its error is not lost
  sum_ = at::full({1}, value, at::kLong);
  work_ = communicator_.all_reduce(sum_, ReduceOp::kSum, {site, -1, -1});
}

std::int64_t JoinContext::result() {
  if (work_ != nullptr) {
    work_->wait();
    work_.reset();
  }
  return sum_.defined() ? sum_.item<std::int64_t>() : 0;
}

void JoinContext::notify(const Joinable& joinable) {
  if (&joinable != joinables_.front()) {
    return;
  }
  post(CallSite::kJoinActive, 1);
  if (options_.throw_on_early_termination) {
    post(CallSite::kJoinEarlyEnd, 0);
    if (result() > 0) {
      throw DdpError("join_early_termination",
                     fmt::format("rank {}: at least one rank has exhausted its inputs, and "
                                 "throw_on_early_termination is on",
                                 communicator_.rank()));
    }
    sum_.fill_(communicator_.world_size());  // nobody has joined
  }
}

std::int64_t JoinContext::num_active() { return result(); }

void JoinContext::shadow_others() {
  bool is_last_joiner = true;
  for (;;) {
    post(CallSite::kJoinActive, 0);
    if (num_active() == 0) {
      break;
    }
    if (options_.throw_on_early_termination) {
      post(CallSite::kJoinEarlyEnd, 1);
      result();
      throw DdpError("join_early_termination",
                     fmt::format("rank {} has exhausted all its inputs, other ranks have not, and "
                                 "throw_on_early_termination is on",
                                 communicator_.rank()));
    }
    is_last_joiner = false;
    for (Joinable* joinable : joinables_) {
      joinable->shadow_iteration();
    }
  }
  for (Joinable* joinable : joinables_) {
    joinable->finish_join(is_last_joiner);
  }
}

void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options) {
  JoinContext context(joinables, options);
  if (!options.enable) {
    body();
    return;
  }
  EnteredJoinables entered;
  for (Joinable* joinable : joinables) {
    entered.enter(*joinable, context);
  }
  body();
  context.shadow_others();
}

}  // namespace lockstep
