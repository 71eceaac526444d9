// SPDX-License-Identifier: Apache-2.0
// Linear extensions, counted on the lattice of the ranks' positions.
#include "sim/order_count.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::sim {
namespace {

// What one rank does between two movements of the clock.
struct Part {
  // By choice: how many collectives every rank must have issued before; 0 for what only follows the
  // rank's own ones.
  std::vector<std::int64_t> needs;
  // By number of choices done, 0 .. size: how many collectives the rank has issued.
  std::vector<std::int64_t> issued;
};

std::vector<Part> parts_of(const std::vector<Choice>& run, std::size_t begin, std::size_t end) {
  const std::size_t world_size = run[begin].issued.size();
  std::vector<Part> parts(world_size);
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    parts[rank].issued.push_back(run[begin].issued[rank]);
  }
  for (std::size_t i = begin; i < end; ++i) {
    const auto rank = static_cast<std::size_t>(rank_of(run[i].actor));
    Part& part = parts[rank];
    part.needs.push_back(is_completion(run[i].actor) ? run[i].completed[rank] + 1 : 0);
    // What the rank issued shows at the next decision. Nothing comes after the last one.
    part.issued.push_back(run[std::min(i + 1, run.size() - 1)].issued[rank]);
  }
  return parts;
}

bool can_go_on(const std::vector<Part>& parts, const std::vector<std::size_t>& position,
               std::size_t rank) {
  const Part& part = parts[rank];
  if (position[rank] == part.needs.size()) {
    return false;
  }
  const std::int64_t needed = part.needs[position[rank]];
  for (std::size_t other = 0; needed > 0 && other < parts.size(); ++other) {
    if (parts[other].issued[position[other]] < needed) {
      return false;
    }
  }
  return true;
}

std::optional<double> count_orders_of(const std::vector<Part>& parts, std::int64_t states_max) {
  std::vector<std::int64_t> strides;
  std::int64_t num_states = 1;
  for (const Part& part : parts) {
    strides.push_back(num_states);
    const auto size = static_cast<std::int64_t>(part.needs.size()) + 1;
    if (num_states > states_max / size) {
      return std::nullopt;
    }
    num_states *= size;
  }
  std::vector<double> ways(static_cast<std::size_t>(num_states), 0.0);
  std::vector<std::size_t> position(parts.size(), 0);
  ways.front() = 1.0;
  // In the order of the states' numbers, which no choice lets decrease.
  for (std::size_t state = 0; state < ways.size(); ++state) {
    for (std::size_t rank = 0; ways[state] > 0.0 && rank < parts.size(); ++rank) {
      if (can_go_on(parts, position, rank)) {
        ways[state + static_cast<std::size_t>(strides[rank])] += ways[state];
      }
    }
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (++position[rank] <= parts[rank].needs.size()) {
        break;
      }
      position[rank] = 0;
    }
  }
  return ways.back();
}

}  // namespace

std::optional<double> count_orders(const std::vector<Choice>& run, std::int64_t states_max) {
  double orders = 1.0;
  for (std::size_t begin = 0, end = 0; begin < run.size(); begin = end) {
    while (end < run.size() && run[end].now_ns == run[begin].now_ns) {
      if (run[end++].failed) {
        return std::nullopt;
      }
    }
    const auto of_part = count_orders_of(parts_of(run, begin, end), states_max);
    if (!of_part) {
      return std::nullopt;
    }
    orders *= *of_part;
  }
  return orders;
}

}  // namespace lockstep::sim
