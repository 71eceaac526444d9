// SPDX-License-Identifier: Apache-2.0
// LibTorch's global CPU generator, made virtual: one state per rank.
#pragma once

#include <cstdint>
#include <memory>

namespace lockstep::sim {

/// Holds the state of everybody who has not the turn; the global generator holds the others'.
class GeneratorBank {
 public:
  static constexpr std::int64_t kController = -1;

  /// All ranks start from the state the global generator has now; it is the controller's.
  explicit GeneratorBank(std::int64_t num_ranks);
  ~GeneratorBank();

  /// Keeps the global generator's state for `from` and sets it to that of `to`.
  void swap(std::int64_t from, std::int64_t to);

 private:
  struct States;
  std::unique_ptr<States> states_;
};

}  // namespace lockstep::sim
