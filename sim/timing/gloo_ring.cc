// SPDX-License-Identifier: Apache-2.0
// One rank's segments, in order; see Note [What Gloo's ring waits for].
#include "sim/timing/gloo_ring.h"

#include <algorithm>
#include <cmath>

namespace lockstep::sim::timing {
namespace {

constexpr double kMaxSegmentBytes = 1 << 20;

/// A half of the ring on one rank, and what both halves share: the clock and the link's bucket.
class Half {
 public:
  Half(std::int64_t ranks, double bytes, const RingLink& link)
      : link_(link), two_ranks_(ranks == 2), paid_ps_(-link.latency_ps) {
    const auto world = static_cast<double>(ranks);
    const double segments = std::max(std::ceil(bytes / kMaxSegmentBytes), 2 * world);
    const double per_chunk = std::ceil(segments / world);
    num_segments_ = (ranks - 1) * static_cast<std::int64_t>(per_chunk);
    transfer_ps_ = bytes / (per_chunk * world) / link.bytes_per_ps;
    if (link.reduce_bytes_per_ps > 0) {
      reduce_ps_ = bytes / (per_chunk * world) / link.reduce_bytes_per_ps;
    }
  }

  /// From `begin_ps` to the time it returns.
  double run(double begin_ps, bool sums) {
    const double reduce_ps = sums ? reduce_ps_ : 0.0;
    double asked_ps = begin_ps, left_ps = begin_ps;        // of the segment before
    double done_ps = begin_ps, done_before_ps = begin_ps;  // received and added: i-1, i-2
    for (std::int64_t i = 0; i < num_segments_; ++i) {
      const double post_ps = i < 2 ? begin_ps : done_before_ps;
      const bool behind_data = i > 0 && asked_ps <= post_ps;
      const double wait_ps =
          !behind_data ? 0.0
          : two_ranks_ ? left_ps - post_ps
                       : std::min(left_ps - post_ps, link_.backlog_bytes / link_.bytes_per_ps);
      asked_ps = post_ps + std::max(wait_ps, 0.0) + link_.latency_ps;  // and so am I
      left_ps = leave(asked_ps);
      done_before_ps = done_ps;
      done_ps = std::max(done_ps, left_ps + link_.latency_ps) + reduce_ps;
    }
    return done_ps;
  }

 private:
  /// When the last byte of a segment that is handed over at `ps` has left. With every byte paid for
  /// at the link's rate, `paid_ps_` is how far payment has come; what passes now may be paid for
  /// later, as far as the bucket allows.
  double leave(double ps) {
    paid_ps_ = std::max(paid_ps_, ps - link_.burst_bytes / link_.bytes_per_ps) + transfer_ps_;
    return std::max(ps, paid_ps_);
  }

  const RingLink& link_;
  const bool two_ranks_;
  std::int64_t num_segments_ = 0;
  double transfer_ps_ = 0.0, reduce_ps_ = 0.0;  ///< of a segment
  double paid_ps_;
};

}  // namespace

GlooRingTimes gloo_ring_times(std::int64_t ranks, double bytes, const RingLink& link) {
  GlooRingTimes times;
  times.entry_ps = 2 * link.latency_ps;
  Half half(ranks, bytes, link);
  const double scattered_ps = half.run(times.entry_ps, true);
  times.reduce_scatter_ps = scattered_ps - times.entry_ps;
  times.all_gather_ps = half.run(scattered_ps, false) - scattered_ps;
  return times;
}

}  // namespace lockstep::sim::timing
