// SPDX-License-Identifier: Apache-2.0
// A search that goes on from the scripts that came farthest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/outcome.h"

namespace lockstep::harness::fuzz {

/// What is to become large.
enum class Toward {
  kUlp,   ///< the worst distance from an oracle, over its bound
  kWait,  ///< the longest virtual time that a rank waits in one collective
};

/// "0.731 of the bound", "12000 ns".
std::string score_text(Toward toward, double score);

/// The best scripts so far. Which cases descend from which depends on seed and results alone: those
/// that come of one generation are known before the next begins.
class Steering {
 public:
  /// Cases of one generation.
  static constexpr std::uint64_t kGeneration = 64;

  struct Scored {
    double score = 0.0;
    Case value;
    std::string name;
  };

  explicit Steering(Toward toward) : toward_(toward) {}

  Toward toward() const { return toward_; }

  /// In the order of the cases.
  void add(const std::string& name, const Case& value, const CaseResult& result);

  /// From now on cases descend from the best of those that were added until now.
  void begin_generation() { parents_ = best_; }

  /// The script from which case `index` descends; null: it is drawn anew, as half of them are.
  const Case* parent(std::uint64_t seed, std::uint64_t index) const;

  /// Best first.
  const std::vector<Scored>& best() const { return best_; }

 private:
  const Toward toward_;
  std::vector<Scored> best_, parents_;
};

}  // namespace lockstep::harness::fuzz
