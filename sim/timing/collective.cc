// SPDX-License-Identifier: Apache-2.0
// The rounds of each algorithm, their costs, and the closed form.
#include "sim/timing/collective.h"

#include <algorithm>
#include <optional>

#include "sim/timing/gloo_ring.h"

namespace lockstep::sim::timing {

namespace {

bool is_power_of_two(std::int64_t value) { return (value & (value - 1)) == 0; }

std::int64_t lowest_bit(std::int64_t value) { return value & -value; }

std::int64_t floor_power_of_two(std::int64_t value) {
  std::int64_t power = 1;
  while (power <= value / 2) power *= 2;
  return power;
}

double us_to_ps(double us) { return us * kPsPerUs; }

/// Bytes per picosecond.
double link_rate(double gbit_per_s) { return gbit_per_s * 1e9 / 8.0 / kPsPerSecond; }

}  // namespace

const char* to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kHalvingDoubling:
      return "halving_doubling";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kGlooRing:
      return "gloo_ring";
    case Algorithm::kHierarchical:
      break;
  }
  return "hierarchical";
}

Collective::Collective(const Setup& setup, Algorithm algorithm, double bytes)
    : world_(setup.world), network_(setup.network), algorithm_(algorithm) {
  node_ranks_ = std::min(world_.ranks_per_node, world_.ranks);
  num_nodes_ = world_.ranks / node_ranks_;
  core_ranks_ = floor_power_of_two(world_.ranks);
  if (world_.ranks == 1) return;
  switch (algorithm) {
    case Algorithm::kRing:
      add_ring(Pattern::kRing, world_.ranks, bytes, true);
      add_ring(Pattern::kRing, world_.ranks, bytes, false);
      break;
    case Algorithm::kHalvingDoubling:
      add_halving_doubling(bytes);
      break;
    case Algorithm::kTree:
      add_tree(bytes);
      break;
    case Algorithm::kGlooRing:
      add_gloo_ring(bytes);
      break;
    case Algorithm::kHierarchical:
      add_ring(Pattern::kRingInside, node_ranks_, bytes, true);
      add_ring(Pattern::kRingAcross, num_nodes_, bytes / static_cast<double>(node_ranks_), true);
      add_ring(Pattern::kRingAcross, num_nodes_, bytes / static_cast<double>(node_ranks_), false);
      add_ring(Pattern::kRingInside, node_ranks_, bytes, false);
      break;
  }
}

double Collective::latency_ps(Scope scope) const {
  return us_to_ps(scope == Scope::kInside ? network_.inside_latency_us : network_.latency_us);
}

double Collective::transfer_ps(Scope scope, double bytes, std::int64_t flows_per_node,
                               std::int64_t flows_per_switch, bool sums) const {
  double rate = link_rate(network_.inside_bandwidth_gbit_per_s);
  if (scope != Scope::kInside) {
    const double node_rate = link_rate(network_.bandwidth_gbit_per_s);
    rate = node_rate / static_cast<double>(flows_per_node);
    if (scope == Scope::kCore) {
      const double uplink_rate =
          node_rate * static_cast<double>(world_.nodes_per_switch) / network_.oversubscription;
      rate = std::min(rate, uplink_rate / static_cast<double>(flows_per_switch));
    }
  }
  double ps = bytes / rate;
  if (sums && network_.reduce_gbyte_per_s > 0) {
    ps += bytes / (network_.reduce_gbyte_per_s * 1e9 / kPsPerSecond);
  }
  return ps;
}

/// Whether ranks at this distance are on different nodes, or below different switches. Unless all
/// sizes are powers of two some pairs of a round are and others are not: the slower ones count.
Collective::Scope Collective::scope_of_distance(std::int64_t distance) const {
  if (num_nodes_ == 1) return Scope::kInside;
  const bool aligned = is_power_of_two(node_ranks_) && is_power_of_two(world_.ranks);
  if (aligned && distance < node_ranks_) return Scope::kInside;
  const std::int64_t per_switch = world_.nodes_per_switch;
  if (per_switch == 0 || per_switch >= num_nodes_) return Scope::kOutside;
  const bool within_switch =
      aligned && is_power_of_two(per_switch) && distance < node_ranks_ * per_switch;
  return within_switch ? Scope::kOutside : Scope::kCore;
}

void Collective::add(Pattern pattern, std::int64_t repeat, std::int64_t distance, double cost_ps,
                     double sent_bytes) {
  if (repeat == 0) return;
  phases_.push_back({pattern, repeat, distance, rounded_ps(cost_ps), sent_bytes});
  Ps total_ps = 0;
  for (const Phase& phase : phases_) {
    // All of it is below 2^61 before the product is, so neither overflows.
    const double phase_ps = static_cast<double>(phase.cost_ps) * static_cast<double>(phase.repeat);
    total_ps += rounded_ps(phase_ps);
    rounded_ps(static_cast<double>(total_ps));
  }
}

/// One half of a ring over `size` ranks: reduce-scatter with sums, all-gather without.
void Collective::add_ring(Pattern pattern, std::int64_t size, double bytes, bool sums) {
  const double chunk_bytes = bytes / static_cast<double>(size);
  const std::int64_t per_switch = world_.nodes_per_switch;
  const bool switched = per_switch > 0 && per_switch < num_nodes_;
  // Flows out of a node: one ring passes it once, the rings across nodes are one per rank.
  const std::int64_t flows = pattern == Pattern::kRingAcross ? node_ranks_ : 1;
  double latency = 0.0;
  double transfer = 0.0;
  if (pattern != Pattern::kRingAcross && node_ranks_ > 1) {
    latency = latency_ps(Scope::kInside);
    transfer = transfer_ps(Scope::kInside, chunk_bytes, 1, 1, sums);
  }
  if (pattern != Pattern::kRingInside && num_nodes_ > 1) {
    const Scope slowest = switched ? Scope::kCore : Scope::kOutside;
    transfer = std::max(transfer, transfer_ps(slowest, chunk_bytes, flows, flows, sums));
    const double outside_share =
        pattern == Pattern::kRingAcross
            ? 1.0
            : static_cast<double>(num_nodes_) / static_cast<double>(world_.ranks);
    latency = outside_share * latency_ps(Scope::kOutside) + (1.0 - outside_share) * latency;
  }
  add(pattern, size - 1, 1, latency + transfer, chunk_bytes * static_cast<double>(world_.ranks));
}

void Collective::add_halving_doubling(double bytes) {
  const std::int64_t extra = world_.ranks - core_ranks_;
  const auto cost = [&](std::int64_t distance, double sent, bool sums) {
    const Scope scope = scope_of_distance(distance);
    return latency_ps(scope) +
           transfer_ps(scope, sent, node_ranks_,
                       node_ranks_ * std::max<std::int64_t>(1, world_.nodes_per_switch), sums);
  };
  if (extra > 0) {
    add(Pattern::kToCore, 1, 1, cost(1, bytes, true), bytes * static_cast<double>(extra));
  }
  double sent = bytes / 2;
  for (std::int64_t distance = 1; distance < core_ranks_; distance *= 2, sent /= 2) {
    add(Pattern::kExchange, 1, distance, cost(distance, sent, true),
        sent * static_cast<double>(core_ranks_));
  }
  for (std::int64_t distance = core_ranks_ / 2; distance > 0; distance /= 2) {
    sent *= 2;
    add(Pattern::kExchange, 1, distance, cost(distance, sent, false),
        sent * static_cast<double>(core_ranks_));
  }
  if (extra > 0) {
    add(Pattern::kFromCore, 1, 1, cost(1, bytes, false), bytes * static_cast<double>(extra));
  }
}

void Collective::add_gloo_ring(double bytes) {
  const bool inside = num_nodes_ == 1;
  const bool switched = world_.nodes_per_switch > 0 && world_.nodes_per_switch < num_nodes_;
  const Scope slowest = inside ? Scope::kInside : switched ? Scope::kCore : Scope::kOutside;
  RingLink link;
  link.latency_ps = latency_ps(slowest);
  link.bytes_per_ps = 1.0 / transfer_ps(slowest, 1.0, 1, 1, false);
  link.burst_bytes = network_.burst_bytes;
  link.backlog_bytes = network_.backlog_bytes;
  link.reduce_bytes_per_ps = network_.reduce_gbyte_per_s * 1e9 / kPsPerSecond;
  const GlooRingTimes times = gloo_ring_times(world_.ranks, bytes, link);
  const auto hops = static_cast<double>(world_.ranks - 1);
  add(Pattern::kRing, 1, 1, times.entry_ps, 0.0);
  add(Pattern::kRing, world_.ranks - 1, 1, times.reduce_scatter_ps / hops, bytes);
  add(Pattern::kRing, world_.ranks - 1, 1, times.all_gather_ps / hops, bytes);
}

void Collective::add_tree(double bytes) {
  const auto senders = [&](std::int64_t distance) {
    // Ranks below the world size whose lowest set bit is `distance`.
    return (world_.ranks - 1 + distance) / (2 * distance);
  };
  const auto cost = [&](std::int64_t distance, bool sums) {
    const Scope scope = scope_of_distance(distance);
    return latency_ps(scope) + transfer_ps(scope, bytes, 1, 1, sums);
  };
  for (std::int64_t distance = 1; distance < world_.ranks; distance *= 2) {
    add(Pattern::kReduce, 1, distance, cost(distance, true),
        bytes * static_cast<double>(senders(distance)));
  }
  for (std::int64_t distance = floor_power_of_two(world_.ranks - 1); distance > 0; distance /= 2) {
    add(Pattern::kBroadcast, 1, distance, cost(distance, false),
        bytes * static_cast<double>(senders(distance)));
  }
}

Collective Collective::slowed(double factor) const {
  Collective slow = *this;
  slow.phases_.clear();
  for (const Phase& phase : phases_) {
    slow.add(phase.pattern, phase.repeat, phase.distance,
             static_cast<double>(phase.cost_ps) * factor, phase.sent_bytes);
  }
  return slow;
}

std::int64_t Collective::num_rounds() const {
  std::int64_t rounds = 0;
  for (const Phase& phase : phases_) rounds += phase.repeat;
  return rounds;
}

const Collective::Phase& Collective::phase_at(std::int64_t round) const {
  for (const Phase& phase : phases_) {
    if (round < phase.repeat) return phase;
    round -= phase.repeat;
  }
  LOCKSTEP_CHECK(false, "round {} after the last one", round);
}

Ps Collective::round_ps(std::int64_t round) const { return phase_at(round).cost_ps; }

Hop Collective::hop(std::int64_t rank, std::int64_t round) const {
  const Phase& phase = phase_at(round);
  const std::int64_t ranks = world_.ranks;
  const std::int64_t extra = ranks - core_ranks_;
  const std::int64_t node_begin = rank / node_ranks_ * node_ranks_;
  switch (phase.pattern) {
    case Pattern::kRing:
      return {(rank + 1) % ranks, (rank + ranks - 1) % ranks};
    case Pattern::kRingInside:
      return {node_begin + (rank - node_begin + 1) % node_ranks_,
              node_begin + (rank - node_begin + node_ranks_ - 1) % node_ranks_};
    case Pattern::kRingAcross:
      return {(rank + node_ranks_) % ranks, (rank + ranks - node_ranks_) % ranks};
    case Pattern::kToCore:
    case Pattern::kFromCore: {
      // The first 2 * extra ranks are pairs: an even one is extra, the odd one after it is core.
      if (rank >= 2 * extra) return {};
      const bool sends = (rank % 2 == 0) == (phase.pattern == Pattern::kToCore);
      return sends ? Hop{rank ^ 1, -1} : Hop{-1, rank ^ 1};
    }
    case Pattern::kExchange: {
      if (rank < 2 * extra && rank % 2 == 0) return {};
      const std::int64_t number = rank < 2 * extra ? rank / 2 : rank - extra;
      const std::int64_t partner = number ^ phase.distance;
      const std::int64_t other = partner < extra ? 2 * partner + 1 : partner + extra;
      return {other, other};
    }
    case Pattern::kReduce:
    case Pattern::kBroadcast: {
      const bool upward = phase.pattern == Pattern::kReduce;
      if (rank != 0 && lowest_bit(rank) == phase.distance) {
        const std::int64_t parent = rank - phase.distance;
        return upward ? Hop{parent, -1} : Hop{-1, parent};
      }
      const bool is_parent = rank % (2 * phase.distance) == 0;
      const std::int64_t child = rank + phase.distance;
      if (!is_parent || child >= ranks) return {};
      return upward ? Hop{-1, child} : Hop{child, -1};
    }
  }
  return {};
}

/// Sum over the phases of one pattern whose distance is at least this.
Ps Collective::phases_ps(Pattern pattern, std::int64_t least_distance) const {
  Ps sum_ps = 0;
  for (const Phase& phase : phases_) {
    if (phase.pattern == pattern && phase.distance >= least_distance) {
      sum_ps += phase.repeat * phase.cost_ps;
    }
  }
  return sum_ps;
}

Ps Collective::up_ps(std::int64_t rank) const {
  const std::int64_t extra = world_.ranks - core_ranks_;
  if (algorithm_ == Algorithm::kHalvingDoubling && rank < 2 * extra && rank % 2 == 0) {
    return phases_ps(Pattern::kToCore, 1);
  }
  Ps sum_ps = 0;
  if (algorithm_ == Algorithm::kTree) {
    for (const Phase& phase : phases_) {
      if (phase.pattern == Pattern::kReduce && (rank & phase.distance) != 0) {
        sum_ps += phase.cost_ps;
      }
    }
  }
  return sum_ps;
}

/// In a tree's broadcast at this distance, before rank r has the data or after: whether the rank
/// that then has what r gets, or has got, sends it on.
bool Collective::passes_on(std::int64_t rank, std::int64_t distance) const {
  const std::int64_t holder = rank & ~(2 * distance - 1);
  return holder + distance < world_.ranks;
}

Ps Collective::down_ps(std::int64_t rank) const {
  switch (algorithm_) {
    case Algorithm::kTree: {
      Ps sum_ps = 0;
      for (const Phase& phase : phases_) {
        if (phase.pattern == Pattern::kBroadcast && passes_on(rank, phase.distance)) {
          sum_ps += phase.cost_ps;
        }
      }
      return sum_ps;
    }
    case Algorithm::kHalvingDoubling: {
      const bool paired = rank < 2 * (world_.ranks - core_ranks_);
      return phases_ps(Pattern::kExchange, 1) + (paired ? phases_ps(Pattern::kFromCore, 1) : 0);
    }
    case Algorithm::kRing:
    case Algorithm::kGlooRing:
      return phases_ps(Pattern::kRing, 1);
    case Algorithm::kHierarchical:
      break;
  }
  return phases_ps(Pattern::kRingInside, 1) + phases_ps(Pattern::kRingAcross, 1);
}

std::uint32_t Collective::role(std::int64_t rank) const {
  if (algorithm_ == Algorithm::kHalvingDoubling) {
    const bool paired = rank < 2 * (world_.ranks - core_ranks_);
    return paired ? 1 + static_cast<std::uint32_t>(rank % 2) : 0;
  }
  if (algorithm_ != Algorithm::kTree) return 0;
  // Rounds of the broadcast that pass by: those of the highest bits, so their number says which.
  // And how many bits are set among those of each scope.
  std::uint32_t role = 0;
  for (std::int64_t distance = core_ranks_; distance > 0; distance /= 2) {
    if (distance < world_.ranks && !passes_on(rank, distance)) ++role;
  }
  std::uint32_t set_bits[3] = {0, 0, 0};
  for (std::int64_t left = rank; left > 0; left -= lowest_bit(left)) {
    ++set_bits[static_cast<std::size_t>(scope_of_distance(lowest_bit(left)))];
  }
  for (const std::uint32_t count : set_bits) role = role * 32 + count;
  return role;
}

Ps Collective::duration_ps() const {
  const std::int64_t last = world_.ranks - 1;
  Ps up_max_ps = up_ps(0);
  Ps down_max_ps = down_ps(0);
  if (algorithm_ == Algorithm::kTree) {
    // The costliest set of bits below the world size: all of the last rank's, or those above one of
    // its bits and all below that.
    up_max_ps = up_ps(last);
    for (std::int64_t bits = last; bits > 0; bits &= bits - 1) {
      up_max_ps = std::max(up_max_ps, up_ps((bits & (bits - 1)) | (lowest_bit(bits) - 1)));
    }
  } else if (algorithm_ == Algorithm::kHalvingDoubling) {
    down_max_ps = std::max(down_max_ps, down_ps(last));
  }
  return up_max_ps + down_max_ps;
}

double Collective::wire_bytes() const {
  double bytes = 0.0;
  for (const Phase& phase : phases_) bytes += static_cast<double>(phase.repeat) * phase.sent_bytes;
  return bytes;
}

Collective choose_collective(const Setup& setup, double bytes) {
  const Algorithm all[] = {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kTree,
                           Algorithm::kHierarchical, Algorithm::kGlooRing};
  std::optional<Collective> best;
  for (const Algorithm algorithm : all) {
    if (setup.network.algorithm == to_string(algorithm)) {
      return Collective(setup, algorithm, bytes);
    }
    if (setup.network.algorithm != "auto" || algorithm == Algorithm::kGlooRing) continue;
    Collective candidate(setup, algorithm, bytes);
    if (!best || candidate.duration_ps() < best->duration_ps()) best = std::move(candidate);
  }
  LOCKSTEP_CHECK(best.has_value(), "unknown algorithm '{}'", setup.network.algorithm);
  return *best;
}

}  // namespace lockstep::sim::timing
