// SPDX-License-Identifier: Apache-2.0
// What a training run leaves behind: per rank and step, the bits of everything.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::harness {

/// Where one tensor lies in a Snapshot.
struct TensorSlot {
  std::string name;
  std::string dtype;  ///< "Float", "Double", "Long", ...
  std::vector<std::int64_t> sizes;
  bool defined = true;  ///< false: an undefined gradient or absent state; no bytes
  std::int64_t offset_bytes = 0;
  std::int64_t num_bytes = 0;
  bool sparse = false;  ///< the tensor held some rows only; the bytes hold all
};

/// Bytes of one real number of floating-point slots, 0 for others. Complex numbers are two.
inline std::int64_t real_bytes(const TensorSlot& slot) {
  return slot.dtype == "Float" || slot.dtype == "ComplexFloat"     ? 4
         : slot.dtype == "Double" || slot.dtype == "ComplexDouble" ? 8
                                                                   : 0;
}

/// The bits of a list of tensors. Equal snapshots of one layout are equal bytes.
struct Snapshot {
  std::shared_ptr<const std::vector<TensorSlot>> slots;
  std::vector<std::uint8_t> bytes;
};

/// How the gradients of one synchronised backward were combined.
enum class Division : std::uint8_t { kBefore, kAfter };
struct ReductionPlan {
  std::vector<std::vector<std::int64_t>> buckets;  ///< parameter indices, in reduction order
  Division division = Division::kBefore;
};

/// One optimizer step of one rank.
struct StepRecord {
  std::int64_t step = 0;
  std::vector<double> losses;  ///< per micro-batch, before scaling by the window
  Snapshot gradients;          ///< after synchronisation, before clipping
  Snapshot parameters;         ///< after the update
  Snapshot buffers;
  Snapshot optimizer;
  /// One per micro-batch; null where the micro-batch did not synchronise.
  std::vector<std::shared_ptr<const ReductionPlan>> plans;
  std::string inexact_in;  ///< "", or the first phase whose arithmetic rounded
};

enum class Ending : std::uint8_t { kFinished, kLeft, kFailed, kWaiting, kCrashed };
const char* to_string(Ending ending);

/// What a rank was in when it stopped for ever.
struct WaitingIn {
  std::string collective;  ///< "all_reduce", "broadcast", ...
  std::string site;        ///< "bucket", "buffers", ...
  std::int64_t seq = 0;
  std::int64_t step = -1;
  std::int64_t bucket = -1;
  std::int64_t numel = 0;
  std::string dtype;
  std::vector<std::int64_t> waiting_for;  ///< ranks that have not issued it
};

/// A collective that a rank issued.
struct CollectiveRecord {
  std::string collective;  ///< "all_reduce", "broadcast", ...
  std::string site;        ///< "bucket", "buffers", ...
  std::int64_t step = -1;
  std::int64_t numel = 0;
  std::string dtype;  ///< "Float", "Long", ...; empty for a barrier
  std::int64_t bucket = -1;
};

/// A parameter that its rank's reducer was still expecting.
struct NeverReady {
  std::string parameter;
  std::int64_t bucket = -1;
  std::int64_t step = -1;         ///< of the forward that armed the reducer
  std::int64_t micro_batch = -1;  ///< the same
  std::string why;  ///< the edge of the graph that lost it: "block vision was not run"
};

/// Everything one rank left behind.
struct RankRun {
  std::int64_t rank = 0;
  Snapshot initial_parameters;  ///< after wrapping
  Snapshot initial_buffers;
  std::vector<StepRecord> steps;
  Snapshot final_parameters;  ///< with join only: after its end, when all ranks are alike again
  Snapshot final_buffers;
  Ending ending = Ending::kFinished;
  std::string error_kind;  ///< kFailed: "reduction_unfinished", "desync", "script", ...
  std::string error_message;
  int signal = 0;             ///< kCrashed
  std::int64_t at_step = -1;  ///< step in progress when the rank ended or stopped
  std::string at_phase;       ///< "construction" | "forward" | "backward" | "sync" | "update" | ...
  std::optional<WaitingIn> waiting;     ///< kWaiting
  std::vector<NeverReady> never_ready;  ///< filled when the run stood still, or on K1
  std::int64_t bucket_all_reduces = 0;
  std::int64_t rebuilds = 0;
  std::vector<CollectiveRecord> collectives;  ///< in the order of issue
  /// What was carried out of [[at]] (routing apart) and of [[fault]]: indices, ascending.
  std::vector<std::int64_t> events_done, faults_done;
  std::uint64_t parameters_at_end = 0;  ///< their checksum, however the rank ended
  std::int64_t ended_at_ns = -1;        ///< virtual time; -1: real time
  std::int64_t longest_wait_ns = 0;     ///< virtual time, in one collective
  /// "rank 0 on host a listens on eth0 (10.0.0.1)"; with [launch] only.
  std::string listens_on;
};

/// The record of `step`; null if the rank did not complete it.
inline const StepRecord* find_step(const RankRun& rank, std::int64_t step) {
  for (const StepRecord& record : rank.steps) {
    if (record.step == step) {
      return &record;
    }
  }
  return nullptr;
}

/// Two ranks that met in one collective with different ideas of it.
struct MismatchInfo {
  std::int64_t seq = 0;
  std::int64_t first_rank = 0, second_rank = 0;
  std::string first, second;  ///< "all_reduce (bucket 0, step 2), 42 x Float"
};

struct Run;

/// What trying several schedules of a program came to.
struct ScheduleSearch {
  std::int64_t num_schedules = 0;    ///< runs that went to their end
  std::int64_t num_repetitions = 0;  ///< runs given up because they only repeated others
  bool all = false;                  ///< there is no other schedule
  std::optional<double> num_orders;  ///< `all`: schedules without reduction (sim/order_count.h)
  std::int64_t num_different = 0;    ///< runs that did not end as the first, with the same bits
  bool kept_all = true;  ///< all that are not the same among each other are in `different`
  /// The first few of them that are not the same among each other.
  std::vector<std::shared_ptr<const Run>> different;
};

/// One run of a program: all ranks of a subject, or a reference (one entry in `ranks`).
struct Run {
  std::vector<RankRun> ranks;
  std::optional<MismatchInfo> mismatch;
  std::uint64_t trace_hash = 0;          ///< simulator only
  std::string trace_text;                ///< only if asked for
  std::string schedule;                  ///< simulator only: its deviations, for a replay
  std::optional<ScheduleSearch> search;  ///< where more than this schedule was tried
};

/// Whether all ranks ended alike, with the same bits in every step and at the end of join.
bool same_run(const Run& a, const Run& b);

/// Bytes of a RankRun, for sending it from a worker process. Same build on both ends.
std::vector<std::uint8_t> serialize(const RankRun& run);
/// Errors: UsageError for bytes that `serialize` did not make.
RankRun deserialize_rank_run(const std::vector<std::uint8_t>& bytes);

/// 64-bit checksum (xxh3) of a snapshot's bytes.
std::uint64_t checksum(const Snapshot& snapshot);

}  // namespace lockstep::harness
