// SPDX-License-Identifier: Apache-2.0
// Equality of cases, field by field, written apart from the schema. A field that is added to
// harness/case.h stops this file from compiling until it is listed here.
#pragma once

#include <tuple>

#include "harness/case.h"

namespace lockstep::harness {

inline auto fields(const WorldSpec& s) {
  const auto& [a, b, c, d] = s;
  return std::tie(a, b, c, d);
}

inline auto fields(const HostSpec& s) {
  const auto& [a, b, c, d] = s;
  return std::tie(a, b, c, d);
}

inline auto fields(const ProcessSpec& s) {
  const auto& [a, b, c, d, e, f] = s;
  return std::tie(a, b, c, d, e, f);
}

inline auto fields(const ExpectEnd& s) {
  const auto& [a, b, c, d, e, f, g] = s;
  return std::tie(a, b, c, d, e, f, g);
}

inline auto fields(const ScheduleSpec& s) {
  const auto& [a, b, c, d, e, f] = s;
  return std::tie(a, b, c, d, e, f);
}

inline auto fields(const ModelSpec& s) {
  const auto& [a, b, c, d, e, f, g, h, i] = s;
  return std::tie(a, b, c, d, e, f, g, h, i);
}

inline auto fields(const DataSpec& s) {
  const auto& [a, b, c, d, e, f, g, h, i] = s;
  return std::tie(a, b, c, d, e, f, g, h, i);
}

inline auto fields(const OptimizerSpec& s) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k] = s;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k);
}

inline auto fields(const DdpSpec& s) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k] = s;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k);
}

inline auto fields(const AtSpec& s) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s0, t, u, v, w, x, y, z, aa,
               ab, ac, ad, ae, af, ag, ah, ai, aj, ak] = s;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s0, t, u, v, w, x, y, z, aa,
                  ab, ac, ad, ae, af, ag, ah, ai, aj, ak);
}

inline auto fields(const FaultSpec& s) {
  const auto& [a, b, c, d, e, f, g, h, i] = s;
  return std::tie(a, b, c, d, e, f, g, h, i);
}

inline auto fields(const ExpectWaiting& s) {
  const auto& [a, b, c, d, e] = s;
  return std::tie(a, b, c, d, e);
}

inline auto fields(const ExpectNeverReady& s) {
  const auto& [a, b] = s;
  return std::tie(a, b);
}

inline auto fields(const ExpectIssued& s) {
  const auto& [a, b, c] = s;
  return std::tie(a, b, c);
}

inline auto fields(const ExpectValues& s) {
  const auto& [a, b, c, d, e] = s;
  return std::tie(a, b, c, d, e);
}

#define LOCKSTEP_EQUAL_BY_FIELDS(type) \
  inline bool operator==(const type& a, const type& b) { return fields(a) == fields(b); }

LOCKSTEP_EQUAL_BY_FIELDS(WorldSpec)
LOCKSTEP_EQUAL_BY_FIELDS(HostSpec)
LOCKSTEP_EQUAL_BY_FIELDS(ProcessSpec)
LOCKSTEP_EQUAL_BY_FIELDS(ExpectEnd)
LOCKSTEP_EQUAL_BY_FIELDS(ScheduleSpec)
LOCKSTEP_EQUAL_BY_FIELDS(ModelSpec)
LOCKSTEP_EQUAL_BY_FIELDS(DataSpec)
LOCKSTEP_EQUAL_BY_FIELDS(OptimizerSpec)
LOCKSTEP_EQUAL_BY_FIELDS(DdpSpec)
LOCKSTEP_EQUAL_BY_FIELDS(AtSpec)
LOCKSTEP_EQUAL_BY_FIELDS(FaultSpec)
LOCKSTEP_EQUAL_BY_FIELDS(ExpectWaiting)
LOCKSTEP_EQUAL_BY_FIELDS(ExpectNeverReady)
LOCKSTEP_EQUAL_BY_FIELDS(ExpectIssued)
LOCKSTEP_EQUAL_BY_FIELDS(ExpectValues)

// These hold specs of their own, whose equality must be known first.
inline auto fields(const TrainSpec& s) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r] = s;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r);
}

inline auto fields(const ExpectSpec& s) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s0, t, u, v] = s;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s0, t, u, v);
}

inline auto fields(const LaunchSpec& s) {
  const auto& [a, b, c, d, e, f, g] = s;
  return std::tie(a, b, c, d, e, f, g);
}

LOCKSTEP_EQUAL_BY_FIELDS(LaunchSpec)
LOCKSTEP_EQUAL_BY_FIELDS(TrainSpec)
LOCKSTEP_EQUAL_BY_FIELDS(ExpectSpec)

inline auto fields(const Case& s) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = s;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
}

LOCKSTEP_EQUAL_BY_FIELDS(Case)

#undef LOCKSTEP_EQUAL_BY_FIELDS

}  // namespace lockstep::harness
