// SPDX-License-Identifier: Apache-2.0
// One all_reduce: who sends to whom in which round and what it costs, and the same in closed form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/timing/duration.h"
#include "sim/timing/setup.h"

namespace lockstep::sim::timing {

enum class Algorithm : std::uint8_t { kRing, kHalvingDoubling, kTree, kHierarchical, kGlooRing };
const char* to_string(Algorithm algorithm);

// Note [How a collective takes time]
// A collective is a sequence of rounds. In round k a rank may send to one rank and receive from
// one. With T[r] the time at which rank r ended round k-1 (at first: at which it began), it ends
// round k at
//     max(T[r] + (cost if it sends), T[from] + cost if it receives),
// or at T[r] if it does neither. The cost of a round is latency + bytes / bandwidth (+ bytes /
// reduce rate where sums are made), the bandwidth being what is left to one of the flows that share
// a link in that round. All hops of a round cost the same: links of several kinds in one round
// count with the slowest transfer and the mean latency of the ring, or the larger latency
// elsewhere.
//
// Rounds of n bytes over W ranks, W = 2^p + x, m nodes of g ranks:
//   ring              W-1 of n/W to the right neighbour with sums, W-1 without
//   halving_doubling  x extra ranks hand n bytes to a neighbour; p exchanges of n/2, n/4, ... with
//                     the rank at distance 1, 2, ... with sums; p back without; n to the extra ones
//   tree              binomial: to rank r - 2^k for k = 0, 1, ... with sums; back in reverse
//   hierarchical      half a ring within each node, g rings across nodes, half a ring again
//   gloo_ring         a round for the entry and the two halves of a ring, of W-1 equal rounds that
//                     add up to what Gloo's messages take; see Note [What Gloo's ring waits for]
//
// Note [Folding a collective]
// For each algorithm the ends are a function of one number, the hub:
//     hub = max over ranks (begin[r] + up(r)),    end[r] = hub + down(r).
// In a ring round cost h, W-1 rounds carry every begin to every rank: after k >= W-1 rounds all are
// at max(begin) + k h. Exchanges at distances 1, 2, ..., 2^(p-1) do the same after p rounds. In the
// tree a rank's begin reaches rank 0 over the rounds of its set bits; on the way back all rounds
// count in which whoever has what rank r gets, and in the end rank r itself, sends to somebody. up
// and down depend on `role(r)` alone. The unfolded simulation executes the rounds; tests hold it
// against this.

/// What a rank does in one round.
struct Hop {
  std::int64_t to = -1;    ///< -1: sends nothing
  std::int64_t from = -1;  ///< -1: receives nothing
};

class Collective {
 public:
  /// An all_reduce of `bytes` by all ranks of `setup` (without overhead).
  /// Errors: UsageError if it takes longer than kLongestPs.
  Collective(const Setup& setup, Algorithm algorithm, double bytes);

  /// With every hop's cost multiplied. Errors: UsageError as above.
  Collective slowed(double factor) const;

  Algorithm algorithm() const { return algorithm_; }
  /// 0 for one rank.
  std::int64_t num_rounds() const;
  Hop hop(std::int64_t rank, std::int64_t round) const;
  Ps round_ps(std::int64_t round) const;

  /// Closed form, see Note [Folding a collective].
  Ps up_ps(std::int64_t rank) const;
  Ps down_ps(std::int64_t rank) const;
  /// Ranks of one role have the same up and down, whatever the bytes.
  std::uint32_t role(std::int64_t rank) const;

  /// From a common begin to the end of the last rank.
  Ps duration_ps() const;
  /// Bytes that all ranks together send.
  double wire_bytes() const;

 private:
  enum class Pattern : std::uint8_t {
    kRing,
    kRingInside,
    kRingAcross,
    kExchange,
    kToCore,
    kFromCore,
    kReduce,
    kBroadcast
  };
  /// `repeat` rounds of one kind.
  struct Phase {
    Pattern pattern;
    std::int64_t repeat = 1;
    std::int64_t distance = 1;
    Ps cost_ps = 0;
    double sent_bytes = 0.0;  ///< by all ranks in one round
  };
  enum class Scope : std::uint8_t { kInside, kOutside, kCore };

  void add_ring(Pattern pattern, std::int64_t size, double bytes, bool sums);
  void add_halving_doubling(double bytes);
  void add_gloo_ring(double bytes);
  void add_tree(double bytes);
  void add(Pattern pattern, std::int64_t repeat, std::int64_t distance, double cost_ps,
           double sent_bytes);

  const Phase& phase_at(std::int64_t round) const;
  bool passes_on(std::int64_t rank, std::int64_t distance) const;
  Ps phases_ps(Pattern pattern, std::int64_t least_distance) const;
  Scope scope_of_distance(std::int64_t distance) const;
  double latency_ps(Scope scope) const;
  double transfer_ps(Scope scope, double bytes, std::int64_t flows_per_node,
                     std::int64_t flows_per_switch, bool sums) const;

  WorldSetup world_;
  NetworkSetup network_;
  Algorithm algorithm_;
  std::int64_t node_ranks_ = 1;  ///< in one node
  std::int64_t num_nodes_ = 1;
  std::int64_t core_ranks_ = 1;  ///< the largest power of two that is not above the ranks
  std::vector<Phase> phases_;
};

/// The collective that network.algorithm asks for; "auto": the one with the shortest duration, the
/// first of equals in the order of Algorithm. gloo_ring is how one transport does it, and no
/// choice.
Collective choose_collective(const Setup& setup, double bytes);

}  // namespace lockstep::sim::timing
