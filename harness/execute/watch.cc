// SPDX-License-Identifier: Apache-2.0
// Rounds of questions, and what their answers prove.
#include "harness/execute/watch.h"

#include <algorithm>

namespace lockstep::harness {

Watch::Watch(std::int64_t num_ranks, const WatchOptions& options, Time now)
    : options_(options),
      ranks_(static_cast<std::size_t>(num_ranks)),
      quiet_since_(now),
      ask_not_before_(now) {}

void Watch::note_progress(Time now) {
  quiet_since_ = now;
  moved_since_asked_ = true;
}

void Watch::note_ended(std::int64_t rank, std::int64_t posted, Time now) {
  of(rank).posted = posted;
  note_progress(now);
}

void Watch::note_answer(std::int64_t rank, std::int64_t round, const Answer& answer, Time now) {
  if (round != round_ || !asked_at_ || of(rank).posted) {
    return;
  }
  const std::optional<Answer>& before = of(rank).before;
  if (before && before->progress != answer.progress) {
    note_progress(now);
  }
  of(rank).answer = answer;
}

Watch::Advice Watch::advise(Time now) {
  if (asked_at_) {
    return all_have_answered() || now >= *asked_at_ + options_.answer_within ? conclude(now)
                                                                             : Advice::kWait;
  }
  if (now < next_time()) {
    return Advice::kWait;
  }
  ++round_;
  asked_at_ = now;
  moved_since_asked_ = false;
  for (Rank& rank : ranks_) {
    rank.before = rank.answer;
    rank.answer.reset();
  }
  return Advice::kAsk;
}

Watch::Advice Watch::conclude(Time now) {
  const Time asked_at = *asked_at_;
  asked_at_.reset();
  ask_not_before_ = now + options_.confirm;
  if (moved_since_asked_) {
    return Advice::kWait;
  }
  const bool is_long_quiet = asked_at - quiet_since_ >= options_.hang_after;
  return is_long_quiet || answers_are_confirmed() ? Advice::kStandsStill : Advice::kWait;
}

Watch::Time Watch::next_time() const {
  if (asked_at_) {
    return *asked_at_ + options_.answer_within;
  }
  const Time when_hung = quiet_since_ + options_.hang_after;
  const Time when_fact = std::max(quiet_since_ + options_.settle, ask_not_before_);
  return some_have_ended() ? std::min(when_fact, when_hung) : when_hung;
}

bool Watch::some_have_ended() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.posted.has_value(); });
}

bool Watch::all_have_answered() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.posted || rank.answer; });
}

bool Watch::waits_for_ended(std::int64_t seq) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [seq](const Rank& rank) { return rank.posted && *rank.posted <= seq; });
}

bool Watch::answers_are_a_fact() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    return rank.posted ||
           (rank.answer && rank.answer->waiting_seq && waits_for_ended(*rank.answer->waiting_seq));
  });
}

bool Watch::answers_are_confirmed() const {
  return answers_are_a_fact() && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
           return rank.posted || (rank.before && *rank.before == *rank.answer);
         });
}

}  // namespace lockstep::harness
