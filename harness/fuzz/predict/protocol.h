// SPDX-License-Identifier: Apache-2.0
// What ranks issue and wait for by the rules of DDP, and how that ends: no tensors, nothing is run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// A collective, as far as ranks that meet in it compare it.
struct Issued {
  std::string collective;  ///< "all_reduce", ...
  std::string site;        ///< "bucket", ...
  std::int64_t step = 0;
  std::int64_t index = 0;    ///< of the site
  std::int64_t variant = 0;  ///< other numbers: of another size or dtype
};
bool operator==(const Issued& a, const Issued& b);

/// One thing that a rank does.
struct Act {
  enum class What {
    kIssue,  ///< `issued`
    kWait,   ///< for its collective number `seq`
    kFail,   ///< with `error`, and does nothing more
    kStand,  ///< for ever, in its collective number `seq`, or in none (-1)
    kLeave,  ///< leaves the loop
    kDie,    ///< its process ends
    kStop,   ///< its process stands still, for longer than the others wait
  };
  What what = What::kIssue;
  std::int64_t step = 0;  ///< that it is in
  Issued issued;
  std::int64_t seq = -1;
  std::string error;
};

/// How one rank ends.
struct RankEnd {
  std::string ending = "finished";       ///< as ExpectEnd::ending
  std::string error;                     ///< kind
  std::int64_t step = 0;                 ///< that it was in
  std::optional<Issued> waiting;         ///< where it waits
  std::vector<std::string> never_ready;  ///< parameters that its last reduction owes
};

struct Ends {
  std::vector<RankEnd> ranks;
  bool wrong_pairing = false;  ///< some ranks met in different collectives

  bool all_well() const;
};

/// The k-th collectives of all ranks meet. Those that differ fail every rank that waits for them or
/// for later ones; one that a dead rank never issues fails who waits for it; one that others never
/// issue is waited for until `timeout_ms`, or for ever (0).
Ends meet(const std::vector<std::vector<Act>>& ranks, std::int64_t timeout_ms);

/// What one rank of a settled case does (see settled.h). Nothing where the rules leave it open.
struct RankActs {
  std::vector<Act> acts;
  std::vector<std::string> never_ready;
};
std::optional<RankActs> acts_of(const Case& value, std::int64_t rank);

/// Both together: how the ranks of a settled case end.
std::optional<Ends> ends_of(const Case& value);

}  // namespace lockstep::harness::fuzz
