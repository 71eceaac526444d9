// SPDX-License-Identifier: Apache-2.0
// How many iterations each rank has.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::test {

/// Every assignment of 0 .. most iterations to the ranks of worlds of 2, 3 and 4 ranks.
inline std::vector<std::vector<std::int64_t>> iteration_mappings(std::int64_t most) {
  std::vector<std::vector<std::int64_t>> mappings;
  for (std::size_t world_size = 2; world_size <= 4; ++world_size) {
    std::vector<std::int64_t> mapping(world_size, 0);
    for (std::size_t rank = 0; rank < world_size;) {
      if (rank == 0) {
        mappings.push_back(mapping);
      }
      // Counts up, the first rank being the lowest digit.
      if (mapping[rank] < most) {
        ++mapping[rank];
        rank = 0;
      } else {
        mapping[rank++] = 0;
      }
    }
  }
  return mappings;
}

}  // namespace lockstep::test
