// SPDX-License-Identifier: Apache-2.0
// A timing file: what is to be predicted, over which axes, and what must be true of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/timing/setup.h"

namespace lockstep::harness {

/// A statement about a quantity at the points of a file, or along one of its axes. Along an axis it
/// must hold for every combination of the other axes.
struct ClaimSpec {
  /// bounds: `of` at every point is in min .. max.
  /// ratio: its value at the first value of the axis over the one at the last is in min .. max.
  /// falls, rises: it goes the other way nowhere, and from end to end by the factor `min` at least.
  /// interior_minimum: the least value is at neither end, and both ends are at least `min` times
  /// it.
  std::string claim;
  std::string of = "step_ms";  ///< see schema.h
  std::string over;            ///< an axis, by its path in [vary] or its short name
  std::string only;            ///< regular expression found in the names of the points meant
  std::optional<double> min, max;
};

/// One point of a timing file: every axis fixed.
struct TimingCase : sim::timing::Setup {
  std::string kind = "timing";
  std::string title;
  std::vector<ClaimSpec> claims;  ///< [[expect]]
};

struct TimingAxis {
  std::vector<std::string> paths, labels;  ///< of the keys that change together
  std::vector<std::string> values;         ///< as names of points show them
};

struct TimingPoint {
  std::string name;             ///< "bucket_cap_bytes=64,ranks=2"; empty without axes
  std::vector<std::size_t> at;  ///< index of the value, per axis
  sim::timing::Setup setup;
};

/// All of one file. Points in axis order, the last axis turning fastest.
struct TimingStudy {
  std::string file;
  std::string title;
  std::vector<TimingAxis> axes;
  std::vector<TimingPoint> points;
  std::vector<ClaimSpec> claims;
};

/// The axis that `name` is a path or short name of; nothing if there is none.
std::optional<std::size_t> find_axis(const TimingStudy& study, const std::string& name);

}  // namespace lockstep::harness
