// SPDX-License-Identifier: Apache-2.0
// How fast a rank computes in a step: jitter, stalls and stragglers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/timing/duration.h"
#include "sim/timing/setup.h"

namespace lockstep::sim::timing {

/// Whatever a rank computes in a step takes `factor` times as long, and begins `delay_ps` later.
struct Pace {
  Ps delay_ps = 0;
  double factor = 1.0;

  Ps at(Ps offset_ps) const { return delay_ps + scaled(offset_ps, factor); }
};

/// What is random about a rank in a step. Of two that agree in `stalled`, the larger `score` is not
/// faster.
struct Draw {
  std::uint32_t score = 0;
  bool stalled = false;
};

/// Random numbers come from CounterRng(seed, RngStream::kTiming, rank, step): they do not depend on
/// how many other ranks or steps there are.
class PaceModel {
 public:
  explicit PaceModel(const Setup& setup);

  /// False: all draws are the same.
  bool is_random() const { return is_random_; }
  Draw draw(std::int64_t rank, std::int64_t step) const;

  /// Which straggler tables name the rank, as bits.
  std::uint32_t stragglers_of(std::int64_t rank) const;
  /// Grows with draw.score.
  Pace pace(Draw draw, std::uint32_t stragglers, std::int64_t step) const;
  Pace pace_of(std::int64_t rank, std::int64_t step) const;

  /// Of all hops of the `index`-th collective of a step; 1 without network jitter.
  double network_factor(std::int64_t step, std::int64_t index) const;
  bool network_is_random() const { return jitter_.network > 0; }

 private:
  double factor(std::uint32_t score, double deviation) const;

  std::uint64_t seed_;
  JitterSetup jitter_;
  std::vector<StragglerSetup> stragglers_;
  std::map<std::int64_t, std::uint32_t> tables_of_rank_;
  bool is_random_;
  std::uint64_t stall_below_;  ///< a draw's second word below this is a stall
};

/// A standard score: mean 0, standard deviation 1. Strictly grows with `word`; uses no math library
/// but sqrt, so that every machine gets the same bits. `distribution` as in JitterSetup.
double standard_score(const std::string& distribution, std::uint32_t word);

}  // namespace lockstep::sim::timing
