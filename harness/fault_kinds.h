// SPDX-License-Identifier: Apache-2.0
// The one table of what [[fault]] can plant: where it happens, what it may say, what it needs.
#pragma once

#include <string>

#include "harness/case.h"

namespace lockstep::harness {

struct FaultKind {
  /// Where the mistake is made, and by whom it is carried out.
  enum class Happens {
    kConstruction,  ///< model, data, plan and wrapper are made with it: it is there from the start
    kScript,        ///< in the steps it names, in the training loop
    kHook,          ///< to the communication hook
    kIssue,         ///< to a collective, when it is issued
    kCompletion,    ///< to a collective, when it completes
    kProcess,       ///< to the rank's process
  };
  enum class Parameter { kNone, kOptional, kNeeded };
  /// What there must be for the mistake to spoil.
  enum class Needs {
    kNothing,
    kReload,
    kShortWindow,
    kDropout,
    kShuffle,
    kHook,
    kSyncBatchNorm,
    kJoin,
    kClipping,
    kMicroBatches,
    kTimeout,
    kSimulator,
    kBuffers,
    kSecondEpoch,
  };

  const char* name;
  Happens happens;
  Parameter parameter;
  Needs needs;
  bool has_ranks = true;  ///< false: an option that all ranks share

  bool has_steps() const { return happens != Happens::kConstruction; }
  bool happens_to_collective() const {
    return happens == Happens::kIssue || happens == Happens::kCompletion;
  }
};

inline constexpr FaultKind kFaultKinds[] = {
    {"no_initial_broadcast", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing, false},
    {"per_rank_init", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"same_batches", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"sum_not_mean", FaultKind::Happens::kScript, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"no_division", FaultKind::Happens::kScript, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"forgotten_parameter", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNeeded,
     FaultKind::Needs::kNothing},
    {"mixed_steps", FaultKind::Happens::kScript, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"stale_gradient", FaultKind::Happens::kScript, FaultKind::Parameter::kOptional,
     FaultKind::Needs::kNothing},
    {"sync_before_last_micro_batch", FaultKind::Happens::kScript, FaultKind::Parameter::kNone,
     FaultKind::Needs::kMicroBatches},
    {"clip_before_sync", FaultKind::Happens::kScript, FaultKind::Parameter::kNone,
     FaultKind::Needs::kClipping},
    {"replaced_parameter", FaultKind::Happens::kScript, FaultKind::Parameter::kNeeded,
     FaultKind::Needs::kNothing},
    {"optimizer_on_copies", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"buffers_not_synced", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kBuffers, false},
    {"corrupt_gradient", FaultKind::Happens::kScript, FaultKind::Parameter::kOptional,
     FaultKind::Needs::kNothing},
    {"exit", FaultKind::Happens::kProcess, FaultKind::Parameter::kNone, FaultKind::Needs::kNothing},
    {"crash", FaultKind::Happens::kProcess, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"optimizer_not_loaded", FaultKind::Happens::kScript, FaultKind::Parameter::kNone,
     FaultKind::Needs::kReload},
    {"other_dtype", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNeeded,
     FaultKind::Needs::kNothing},
    {"other_shape", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNeeded,
     FaultKind::Needs::kNothing},
    {"local_batch_norm", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kSyncBatchNorm},
    {"join_divisor", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kJoin, false},
    {"shuffle_seed", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kShuffle},
    {"epoch_not_set", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kSecondEpoch},
    {"dropout_seed", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kDropout},
    {"window_scale", FaultKind::Happens::kScript, FaultKind::Parameter::kNone,
     FaultKind::Needs::kShortWindow},
    {"model_not_loaded", FaultKind::Happens::kConstruction, FaultKind::Parameter::kNone,
     FaultKind::Needs::kReload},
    {"hook_raises", FaultKind::Happens::kHook, FaultKind::Parameter::kNone,
     FaultKind::Needs::kHook},
    {"hook_result", FaultKind::Happens::kHook, FaultKind::Parameter::kNone,
     FaultKind::Needs::kHook},
    {"stop", FaultKind::Happens::kProcess, FaultKind::Parameter::kNone, FaultKind::Needs::kTimeout},
    {"skip_wait", FaultKind::Happens::kIssue, FaultKind::Parameter::kNone,
     FaultKind::Needs::kSimulator},
    {"skip_collective", FaultKind::Happens::kIssue, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"swap_collectives", FaultKind::Happens::kIssue, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"wrong_numel", FaultKind::Happens::kIssue, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"wrong_dtype", FaultKind::Happens::kIssue, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"transport_error", FaultKind::Happens::kCompletion, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"corrupt_payload", FaultKind::Happens::kCompletion, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"slow_link", FaultKind::Happens::kCompletion, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"cut_link", FaultKind::Happens::kCompletion, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
    {"bad_batch", FaultKind::Happens::kScript, FaultKind::Parameter::kNone,
     FaultKind::Needs::kNothing},
};

/// The entry called `name`; null if no fault is called so.
const FaultKind* find_fault_kind(const std::string& name);

/// Whether a fault of this kind happens to collectives; see FaultyCommunicator.
bool is_collective_fault(const std::string& kind);
/// Whether it befalls the rank's process: "exit", "crash", "stop".
bool is_process_fault(const std::string& kind);
/// Those that happen when the collective completes; the others when it is issued.
bool happens_at_completion(const std::string& kind);
/// What the collectives are for that a fault is about: "bucket", ...; empty: about none.
std::string site_of(const FaultSpec& fault);

}  // namespace lockstep::harness
