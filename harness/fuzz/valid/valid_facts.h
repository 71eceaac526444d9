// SPDX-License-Identifier: Apache-2.0
// What the rules of valid scripts ask of a case, worked out once.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/case.h"
#include "harness/model_plan.h"

namespace lockstep::harness::fuzz {

/// One forward of one rank.
struct Place {
  std::int64_t rank = 0, step = 0, micro = 0, forward = 0;
  bool syncs = false;         ///< its micro-batch is reduced
  std::vector<bool> trained;  ///< by tensor: gets a gradient in backward
};

struct Facts {
  /// `value` outlives this. Precondition: check_model finds nothing.
  explicit Facts(const Case& value);

  /// Some stage names a block of this kind.
  bool has(BlockKind kind) const;
  /// Some stage names a block with `holds`.
  bool any(bool (*holds)(const BlockSpec&)) const;
  /// Every forward of every rank in the order of running, with what it trains. A window that
  /// [[at]] makes shorter is looked at in full.
  std::vector<Place> places() const;
  /// By tensor: gets a gradient from a forward along this route.
  std::vector<bool> trained_by(const Route& route) const;
  /// By tensor: in the reducer, that is not frozen at construction.
  const std::vector<bool>& tracked() const { return tracked_; }

  const Case& value;
  const ModelPlan plan;
  bool buffers, sparse, complex, reentrant, exchanges;
  std::int64_t share;    ///< samples of a micro-batch
  std::int64_t forward;  ///< samples of a forward
  bool reduces;          ///< gradients are reduced inside backward
  bool windows;          ///< some backward of a step does not synchronise
  bool local_passes;     ///< windows, or first passes of an ascent
  bool every;            ///< every backward synchronises, and a step has several

 private:
  std::vector<bool> tracked_;
};

}  // namespace lockstep::harness::fuzz
