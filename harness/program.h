// SPDX-License-Identifier: Apache-2.0
// What each rank does, step by step: a case compiled for a subject or a reference.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/model.h"

namespace lockstep::harness {

/// Samples that go through the model together.
struct Part {
  std::vector<std::int64_t> samples;
  Route route;
  /// Samples that a mean loss is taken over; 0: its own. Parts of one batch add up to its mean.
  double mean_over = 0.0;
};

struct MicroBatch {
  std::vector<Part> parts;  ///< one, except where a reference merges ranks of different routes
  bool sync = true;         ///< the forward is meant to be followed by a synchronising backward
};

struct StepPlan {
  std::int64_t step = 0;
  double loss_scale = 1.0;  ///< multiplies each micro-batch's loss before backward
  std::vector<MicroBatch> micro_batches;
  /// Events of this rank and step except routing, as indices into Case::at.
  std::vector<std::size_t> events;
  /// Faults of this rank and step, as indices into Case::faults; none for references.
  std::vector<std::size_t> faults;
};

struct RankProgram {
  std::int64_t rank = 0;
  std::int64_t init_rank = 0;   ///< whose initial parameters this rank draws
  std::int64_t noise_rank = 0;  ///< whose random numbers its dropout draws
  std::vector<StepPlan> steps;
};

enum class Role { kSubject, kReplay, kSerial };

class Dataset;

struct Program {
  Case value;
  Role role = Role::kSubject;
  std::vector<RankProgram> ranks;  ///< one for kSerial
  std::shared_ptr<const Dataset> data;
  /// Replicas run their forwards one by one: a sync_batch_norm sees its own batch only.
  bool separate_forwards = false;
};

/// Two entries of [[at]] that differ in ranks and steps at most.
bool same_action(const AtSpec& a, const AtSpec& b);

/// All ranks do the same as `at` at this step, be it written as one entry or as one per rank.
bool all_ranks_do(const Case& value, const AtSpec& at, std::int64_t step);

/// Why there is no serial reference for a case, as a noun phrase ("a model with dropout"): where a
/// forward depends on how samples are grouped. Empty where there is one.
std::string why_no_serial(const Case& value);

/// True if the case is the serial reference itself: one rank with one batch, whose division by 1
/// changes nothing. Sparse gradients are coalesced all the same, which adds rows in another order.
bool is_one_batch(const Case& value);

/// How many steps each rank has inputs for. Inside join a rank that leaves the loop has none left.
std::vector<std::int64_t> steps_by_rank(const Case& value);

/// The samples of a case, for all programs that are compiled from it. Does not change: any thread.
std::shared_ptr<const Dataset> draw_data(const Case& value);

/// What the W ranks of the subject do, mistakes and disturbances included.
/// `data`, here and below: draw_data(value), where it is at hand already.
Program compile_subject(const Case& value, std::shared_ptr<const Dataset> data = nullptr);
/// What they were meant to do: the same without faults, without events that are unknown to
/// references, and with state changes only where all ranks make them.
Program compile_replay(const Case& value, std::shared_ptr<const Dataset> data = nullptr);
/// One process on the concatenated global batch of the ranks that have inputs: one micro-batch per
/// step, one part per distinct route, no synchronisation.
Program compile_serial(const Case& value, std::shared_ptr<const Dataset> data = nullptr);

}  // namespace lockstep::harness
