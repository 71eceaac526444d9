// SPDX-License-Identifier: Apache-2.0
// How far a long run is, on a terminal.
#pragma once

#include <cstdint>

namespace lockstep::harness {

/// One line on the standard error that overwrites itself; nothing at all if that is no terminal.
class Progress {
 public:
  /// Of a run whose end is not known.
  static constexpr std::int64_t kUnknown = -1;

  explicit Progress(std::int64_t num_cases);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows the count and the rate so far; at most ten times a second.
  void update(std::int64_t num_done);
  /// Takes the line away, before anything else is written to the terminal.
  void clear();

 private:
  const bool on_;
  bool visible_ = false;
  const std::int64_t num_cases_;
  const double start_s_;
  double last_s_ = 0.0;
};

}  // namespace lockstep::harness
