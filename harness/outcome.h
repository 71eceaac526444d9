// SPDX-License-Identifier: Apache-2.0
// What the judge says about a case: plain records, no tensors, no behaviour.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/run.h"

namespace lockstep::harness {

enum class OutcomeKind : std::uint8_t {
  kEqual,
  kWithinBound,
  kDiverged,
  kDeadlock,
  kError,
  kCrash,
  kPredicted  ///< of a timing file: its claims were judged
};
const char* to_string(OutcomeKind kind);

/// A guess at the cause of a divergence that was recomputed and fits the numbers.
struct CauseHypothesis {
  std::string name;         ///< "times_world_size", "local_only", "stale_gradient", ...
  std::string description;  ///< one sentence
  bool exact = false;       ///< fits every bit of the tensor, not only within rounding
};

/// The first place where a promise is broken.
struct Divergence {
  std::string oracle;      ///< "ranks" | "replay" | "serial"
  std::int64_t step = -1;  ///< -1: after construction
  /// "init" | "forward" | "gradient" | "parameter" | "buffer" | "optimizer" | "final"
  std::string phase;
  std::vector<std::int64_t> ranks;  ///< ranks that differ, ascending
  std::string tensor;
  std::int64_t element = -1;               ///< flat index; -1: the whole tensor (defined or not)
  std::string expected, actual;            ///< values with all digits
  std::string expected_bits, actual_bits;  ///< hexadecimal
  std::int64_t ulp = -1;                   ///< -1: not comparable
  std::int64_t num_elements_differ = 0;
  std::vector<CauseHypothesis> causes;  ///< best first
};

/// Observed distance from an oracle that allows one.
struct Distance {
  double observed = 0.0;  ///< largest |subject - reference| / bound is where these were taken
  double bound = 0.0;     ///< 0: bit for bit
  std::int64_t step = -1;
  std::string tensor;
};

/// A change that was tried on the same schedule and made the case pass.
struct Cure {
  std::string name;         ///< "find_unused_parameters", ...
  std::string description;  ///< what to change, and what the re-run showed
};

/// What came of one candidate change.
struct TriedCure {
  std::string name;
  bool proven = false;
  std::string instead;  ///< what happened in the place of a cure: "deadlock", "diverged in step 2"
};

/// A rank that others wait for.
struct Absence {
  std::int64_t rank = 0;
  std::string instead;  ///< what it did in the place of joining them, in words
};

/// A collective in which ranks wait for others that never issue it.
struct StuckCollective {
  WaitingIn collective;
  std::vector<std::int64_t> waiting;  ///< ascending
  std::vector<Absence> absent;        ///< ascending
};

/// The same collective of several ranks.
struct IssuedBy {
  CollectiveRecord collective;
  std::vector<std::int64_t> ranks;  ///< ascending
};

/// Where the sequences of collectives of two ranks first differ: there, what is not the same was
/// paired, be it that the transport noticed, or that the data fitted and were mixed.
struct WrongPairing {
  std::int64_t seq = 0;
  std::vector<IssuedBy> issued;       ///< by lowest rank; at least two
  std::vector<std::int64_t> nothing;  ///< ranks that issued fewer collectives
  bool is_mixed = false;              ///< nobody noticed: it was carried out
};

/// One line of the step table.
struct StepSummary {
  std::int64_t step = 0;
  std::optional<double> reference_loss;  ///< serial reference, or the mean of the replay's ranks
  std::vector<double> losses;            ///< per rank that made it, mean over micro-batches
  std::uint64_t reference_checksum = 0;  ///< of the replay reference's parameters
  /// Per rank, of the parameters after the update; 0: it did not make the step.
  std::vector<std::uint64_t> checksums;
};

/// How one rank stands, for deadlocks, errors and crashes.
struct RankState {
  std::int64_t rank = 0;
  Ending ending = Ending::kFinished;
  std::int64_t at_step = -1;
  std::string at_phase;
  std::optional<WaitingIn> waiting;
  std::vector<NeverReady> never_ready;
  std::string error_kind, error_message;
  int signal = 0;
  std::vector<std::string> alone;  ///< scripted actions and planted mistakes that not all ranks had
};

struct Outcome {
  OutcomeKind kind = OutcomeKind::kEqual;
  std::vector<std::string> oracles;      ///< those that were held up against the subject
  std::optional<Distance> worst;         ///< kWithinBound, and kDiverged by the serial oracle
  std::optional<Divergence> divergence;  ///< kDiverged; also what had diverged before an error
  std::vector<RankState> ranks;          ///< kDeadlock, kError, kCrash
  std::optional<MismatchInfo> mismatch;
  std::vector<StuckCollective> stuck;         ///< who is missing from which collective
  std::optional<WrongPairing> wrong_pairing;  ///< where there is one and the case ended badly
  /// How it came to this: "unfinished_hang", "unfinished_error" and "unfinished_drift", which are
  /// the three endings of a reduction that waits for gradients that never come; "wrong_pairing".
  std::vector<CauseHypothesis> diagnoses;
  std::optional<Cure> cure;                 ///< the first that was proven
  std::vector<TriedCure> cures_tried;       ///< in order
  std::string reason;                       ///< one sentence a person can act on
  std::string wait_for_text, wait_for_dot;  ///< kDeadlock
};

/// The same case under another implementation of DDP.
struct PeerComparison {
  std::string sync;                      ///< whose: "torch"
  std::vector<std::string> differences;  ///< with their places; empty: the same in everything
  std::string reason;                    ///< why differences are intended; empty: none is
};

/// A relation between two runs that was looked at and does not hold (fuzz/properties.h).
struct BrokenProperty {
  std::string name;        ///< "bucket_cap", "world_size_one", ...
  std::string difference;  ///< one sentence: what differs, and where
};

/// How many schedules were tried.
struct ScheduleCount {
  std::int64_t num_schedules = 0;
  std::int64_t num_repetitions = 0;  ///< given up because they only repeated others
  std::int64_t num_different = 0;    ///< not the same ends and bits as the first
  bool all = false;                  ///< there is no other schedule
  /// `all`: how many there are if independent ranks' orders are told apart; where it was counted.
  std::optional<double> num_orders;
};

/// A case, what came out, and whether that was expected.
struct CaseResult {
  std::string file, name, title;
  std::string backend;      ///< "sim" | "gloo"
  std::string replay_toml;  ///< the case as a scenario file
  Outcome outcome;
  bool as_expected = false;
  bool skipped = false;                 ///< not run: cannot be judged on the backend
  std::vector<std::string> complaints;  ///< what differs from [expect], one sentence each
  std::vector<StepSummary> steps;
  std::int64_t bucket_all_reduces = 0;  ///< rank 0
  std::int64_t rebuilds = 0;            ///< rank 0
  std::uint64_t trace_hash = 0;
  std::string schedule;                    ///< simulator: the run's deviations, for a replay
  bool of_one_schedule = true;             ///< all of this is about that run, and not about many
  std::optional<ScheduleCount> schedules;  ///< where several were tried
  /// Gloo: final parameters compared with the simulator's for the same case.
  std::optional<bool> equals_simulator;
  std::optional<PeerComparison> peer;             ///< where one was asked for
  std::vector<BrokenProperty> broken_properties;  ///< of those that were asked for
  std::int64_t longest_wait_ns = 0;  ///< simulator: virtual time that a rank waited in a collective
  std::string internal_error;        ///< a defect of Lockstep itself; exit status 3
  double seconds = 0.0;
};

}  // namespace lockstep::harness
