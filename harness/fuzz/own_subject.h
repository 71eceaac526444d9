// SPDX-License-Identifier: Apache-2.0
// Does somebody's own communicator or gradient synchronisation keep training in lockstep?
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "harness/fuzz/draw/space.h"
#include "harness/subject.h"

namespace lockstep::harness::fuzz {

/// What is put to the test, and on which scripts.
struct OwnSubject : Subject {
  /// What `make_sync` keeps to; without one it is always "ddp".
  /// - "flat": after the backward of a micro-batch that synchronises, `.grad` of every trainable
  ///   parameter becomes the ranks' mean, absent gradients counting as zeros. Buffers are left
  ///   alone, and nothing of [ddp] is looked at. Scripts are drawn accordingly: dense gradients of
  ///   one dtype, ranks with the same number of steps.
  /// - "ddp": gradients are reduced inside backward, and [ddp] is obeyed: unused parameters, static
  ///   graphs, join, hooks, buffers.
  std::string promises = "flat";
  /// Sums are added in the order of Gloo's ring, as the simulator's transport adds them.
  bool adds_as_gloo = true;
  std::int64_t ranks_max = 8;
  /// Left out: what RC_PARAMS says ("seed=7 max_success=1000"), else 1 and 100.
  std::optional<std::uint64_t> seed;
  std::optional<std::int64_t> cases;
};

struct OwnVerdict {
  bool holds = true;
  std::int64_t num_cases = 0;  ///< that were judged
  /// The first that does not hold, as a scenario file; of drawn ones the smallest that shows the
  /// same.
  std::string scenario;
  std::string text;  ///< what went wrong there, that file, and how to have it again
};

/// Judges scripts without a mistake, drawn by seed and number, until one of them is not as
/// predicted, in the simulator. The same subject and numbers give the same verdict.
///
/// Held up against the subject: the oracle `ranks` always; `serial` where it is defined; `replay`,
/// which wants 0 ULP for any data, where GradientSync::plan() tells how gradients were combined,
/// and for more than two ranks if `adds_as_gloo`. A plan() that is always null is a complete
/// answer: then `replay` is not asked for.
/// Errors: UsageError for options that do not exist, and what check_lockstep of a file throws.
OwnVerdict check_lockstep(const OwnSubject& subject);

/// The same for the cases of one scenario, each with the expectation that it states, except that
/// oracles which cannot be held are left out. `scenario`: a path, or the text of a file.
/// Errors: ScenarioError.
OwnVerdict check_lockstep(const OwnSubject& subject, const std::string& scenario);

}  // namespace lockstep::harness::fuzz
