// SPDX-License-Identifier: Apache-2.0
// Every rank and every message: a queue of events in the order of time.
#include <algorithm>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "sim/timing/prediction.h"
#include "sim/timing/run_plan.h"

namespace lockstep::sim::timing {

namespace {

struct Event {
  enum class Kind : std::uint8_t { kLaunch, kFirstRound, kRoundEnd, kArrival };
  Ps at_ps = 0;
  std::int64_t seq = 0;  ///< of equal times the one that was scheduled first comes first
  Kind kind = Kind::kLaunch;
  std::int64_t rank = 0;
  std::int64_t collective = 0;  ///< kArrival: counted over the whole run
  std::int64_t round = 0;       ///< kArrival
};

struct Later {
  bool operator()(const Event& a, const Event& b) const {
    return std::tie(a.at_ps, a.seq) > std::tie(b.at_ps, b.seq);
  }
};

/// Where a rank is. Its collectives form a queue: the one at the head is under way.
struct RankRun {
  std::int64_t step = 0;
  std::shared_ptr<const PlannedStep> planned;
  Pace pace;
  std::size_t segment = 0;
  Ps step_begin_ps = 0;
  Ps segment_begin_ps = 0;
  std::size_t num_launched = 0;  ///< of the segment
  std::size_t head = 0;          ///< of the segment
  bool under_way = false;
  std::int64_t collective = 0;  ///< number of the head over the whole run
  std::int64_t round = 0;
  bool waiting = false;  ///< in this round, for a message
  Ps sent_ps = 0;        ///< what this rank sends in this round has left it
  std::map<std::pair<std::int64_t, std::int64_t>, Ps> inbox;  ///< (collective, round) to arrival
};

class EventRun {
 public:
  explicit EventRun(const RunPlan& run) : run_(run), prediction_(run.begin_prediction()) {
    prediction_.num_classes = run.setup().world.ranks;
    prediction_.steps.resize(static_cast<std::size_t>(run.setup().train.steps));
    for (std::int64_t step = 0; step < run.setup().train.steps; ++step) {
      planned_.push_back(run.step(step));
    }
    ranks_.resize(static_cast<std::size_t>(run.setup().world.ranks));
  }

  Prediction simulate() {
    for (std::int64_t rank = 0; rank < run_.setup().world.ranks; ++rank) begin_step(rank, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      ++prediction_.num_events;
      handle(event);
    }
    return std::move(prediction_);
  }

 private:
  RankRun& at(std::int64_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  bool tells(std::int64_t rank) {
    return rank == 0 && at(rank).step + 1 == run_.setup().train.steps;
  }
  StepTimes& times(std::int64_t step) { return prediction_.steps[static_cast<std::size_t>(step)]; }

  void schedule(Ps at_ps, Event::Kind kind, std::int64_t rank, std::int64_t collective = 0,
                std::int64_t round = 0) {
    events_.push({at_ps, next_seq_++, kind, rank, collective, round});
  }

  void handle(const Event& event) {
    RankRun& r = at(event.rank);
    switch (event.kind) {
      case Event::Kind::kLaunch:
        ++r.num_launched;
        if (!r.under_way) begin_collective(event.rank, event.at_ps);
        return;
      case Event::Kind::kFirstRound:
        begin_round(event.rank, event.at_ps);
        return;
      case Event::Kind::kRoundEnd:
        ++r.round;
        begin_round(event.rank, event.at_ps);
        return;
      case Event::Kind::kArrival:
        r.inbox[{event.collective, event.round}] = event.at_ps;
        if (r.waiting && r.collective == event.collective && r.round == event.round) receive(r);
        return;
    }
  }

  void begin_step(std::int64_t rank, Ps now_ps) {
    RankRun& r = at(rank);
    r.planned = planned_[static_cast<std::size_t>(r.step)];
    r.pace = run_.paces().pace_of(rank, r.step);
    r.step_begin_ps = now_ps;
    Ps compute_end_ps = now_ps + r.pace.delay_ps;
    for (const Segment& s : r.planned->plan.segments) {
      compute_end_ps += scaled(s.compute_ps, r.pace.factor);
    }
    StepTimes& step = times(r.step);
    step.begin_ps = std::max(step.begin_ps, now_ps);
    step.compute_end_ps = std::max(step.compute_end_ps, compute_end_ps);
    r.segment = 0;
    begin_segment(rank, now_ps);
  }

  void begin_segment(std::int64_t rank, Ps now_ps) {
    RankRun& r = at(rank);
    const Segment& segment = r.planned->plan.segments[r.segment];
    r.segment_begin_ps = now_ps;
    r.num_launched = r.head = 0;
    for (const Launch& launch : segment.launches) {
      schedule(now_ps + r.pace.at(launch.offset_ps), Event::Kind::kLaunch, rank);
    }
    if (!tells(rank)) return;
    const Ps since_ps = now_ps - r.step_begin_ps;
    prediction_.backward_begin_ps.push_back(since_ps + r.pace.at(segment.backward_begin_ps));
    prediction_.backward_end_ps.push_back(since_ps + r.pace.at(segment.compute_ps));
  }

  void begin_collective(std::int64_t rank, Ps now_ps) {
    RankRun& r = at(rank);
    const Segment& segment = r.planned->plan.segments[r.segment];
    const Launch& launch = segment.launches[r.head];
    r.under_way = true;
    r.round = 0;
    if (tells(rank)) {
      CollectiveTimes told = untimed(segment, launch, r.planned->collectives[r.segment][r.head]);
      told.ready_ps = r.segment_begin_ps + r.pace.at(launch.offset_ps) - r.step_begin_ps;
      told.begin_ps = now_ps - r.step_begin_ps;
      prediction_.timeline.push_back(told);
    }
    schedule(now_ps + launch.overhead_ps, Event::Kind::kFirstRound, rank);
  }

  void begin_round(std::int64_t rank, Ps now_ps) {
    RankRun& r = at(rank);
    const Collective& collective = r.planned->collectives[r.segment][r.head];
    const std::int64_t num_rounds = collective.num_rounds();
    Hop hop;
    for (; r.round < num_rounds; ++r.round) {
      hop = collective.hop(rank, r.round);
      if (hop.to >= 0 || hop.from >= 0) break;
    }
    if (r.round == num_rounds) {
      end_collective(rank, now_ps);
      return;
    }
    const Ps cost_ps = collective.round_ps(r.round);
    r.sent_ps = now_ps;
    if (hop.to >= 0) {
      r.sent_ps += cost_ps;
      schedule(r.sent_ps, Event::Kind::kArrival, hop.to, r.collective, r.round);
    }
    if (hop.from < 0) {
      schedule(r.sent_ps, Event::Kind::kRoundEnd, rank);
      return;
    }
    r.waiting = true;
    if (r.inbox.count({r.collective, r.round}) > 0) receive(r);
  }

  /// The message of this round is there.
  void receive(RankRun& r) {
    const auto message = r.inbox.find({r.collective, r.round});
    r.waiting = false;
    schedule(std::max(r.sent_ps, message->second), Event::Kind::kRoundEnd, &r - ranks_.data());
    r.inbox.erase(message);
  }

  void end_collective(std::int64_t rank, Ps now_ps) {
    RankRun& r = at(rank);
    r.under_way = false;
    ++r.head;
    ++r.collective;
    if (tells(rank)) prediction_.timeline.back().end_ps = now_ps - r.step_begin_ps;
    if (r.head < r.num_launched) {
      begin_collective(rank, now_ps);
    } else if (r.head == r.planned->collectives[r.segment].size()) {
      end_segment(rank, now_ps);
    }
  }

  void end_segment(std::int64_t rank, Ps now_ps) {
    RankRun& r = at(rank);
    r.pace.delay_ps = 0;  // A stall is over when the first segment is.
    if (++r.segment < r.planned->plan.segments.size()) {
      begin_segment(rank, now_ps);
      return;
    }
    const Ps end_ps = now_ps + r.planned->plan.optimizer_ps;
    times(r.step).end_ps = std::max(times(r.step).end_ps, end_ps);
    if (++r.step < run_.setup().train.steps) begin_step(rank, end_ps);
  }

  const RunPlan& run_;
  Prediction prediction_;
  std::vector<std::shared_ptr<const PlannedStep>> planned_;
  std::vector<RankRun> ranks_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::int64_t next_seq_ = 0;
};

}  // namespace

Prediction simulate_unfolded(const Setup& setup) {
  const RunPlan run(setup);
  return EventRun(run).simulate();
}

}  // namespace lockstep::sim::timing
