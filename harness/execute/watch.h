// SPDX-License-Identifier: Apache-2.0
// Decides from signs of life and answers whether a run of real processes stands still.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::harness {

/// Durations of real time. Scenario results depend on them only where ranks are slower than
/// `hang_after`.
struct WatchOptions {
  /// Nobody makes progress for this long: the run is taken to stand still.
  std::chrono::nanoseconds hang_after{std::chrono::seconds(10)};
  /// Quiet time before ranks are asked, where some rank has ended.
  std::chrono::nanoseconds settle{std::chrono::milliseconds(100)};
  /// Time between two equal sets of answers that prove a standstill.
  std::chrono::nanoseconds confirm{std::chrono::milliseconds(200)};
  /// How long answers are waited for; who does not answer is unresponsive.
  std::chrono::nanoseconds answer_within{std::chrono::seconds(1)};
};

/// Watches the ranks of one case. Knows nothing of processes; all times are handed in.
///
/// A run stands still in two ways.
/// 1. Nobody made progress for `hang_after`, and being asked afterwards changes nothing.
/// 2. As a fact, found early: every rank that has not ended waits in a collective that some rank
///    that has ended never issued. Such a rank can never issue it, and nobody else can move. Only
///    an error that is still on its way (a lost peer) could end a wait; so the same answers must
///    be given twice, `confirm` apart, with no sign of life in between.
class Watch {
 public:
  using Time = std::chrono::nanoseconds;  ///< since any fixed moment

  struct Answer {
    std::int64_t progress = 0;                ///< equal values: nothing happened in between
    std::optional<std::int64_t> waiting_seq;  ///< the collective the rank waits in
    friend bool operator==(const Answer& a, const Answer& b) {
      return a.progress == b.progress && a.waiting_seq == b.waiting_seq;
    }
  };

  enum class Advice {
    kWait,         ///< call again at `next_time` or when something was noted
    kAsk,          ///< a round begins: ask every rank that has not ended where it is
    kStandsStill,  ///< what was answered in round `round()` is final
  };

  /// `now`: when the ranks began.
  Watch(std::int64_t num_ranks, const WatchOptions& options, Time now);

  void note_progress(Time now);
  /// `posted`: number of collectives that the rank issued in its life; 0 for one that died.
  void note_ended(std::int64_t rank, std::int64_t posted, Time now);
  /// Answers to other rounds than the present one are ignored.
  void note_answer(std::int64_t rank, std::int64_t round, const Answer& answer, Time now);

  Advice advise(Time now);
  Time next_time() const;

  /// Number of the latest round; counts from 1.
  std::int64_t round() const { return round_; }
  bool has_answered(std::int64_t rank) const { return of(rank).answer.has_value(); }

 private:
  struct Rank {
    std::optional<std::int64_t> posted;  ///< of a rank that has ended
    std::optional<Answer> answer;        ///< in this round
    std::optional<Answer> before;        ///< in the round before
  };
  Rank& of(std::int64_t rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  const Rank& of(std::int64_t rank) const { return ranks_.at(static_cast<std::size_t>(rank)); }
  bool some_have_ended() const;
  bool all_have_answered() const;
  bool waits_for_ended(std::int64_t seq) const;
  bool answers_are_a_fact() const;
  bool answers_are_confirmed() const;
  Advice conclude(Time now);

  WatchOptions options_;
  std::vector<Rank> ranks_;
  Time quiet_since_;
  Time ask_not_before_;
  std::int64_t round_ = 0;
  std::optional<Time> asked_at_;    ///< while a round is open
  bool moved_since_asked_ = false;  ///< in this round
};

}  // namespace lockstep::harness
