// SPDX-License-Identifier: Apache-2.0
// The report for programs.
#pragma once

#include <iosfwd>
#include <memory>

#include "harness/report/report.h"

namespace lockstep::harness {

/// Version of the layout; grows when a field changes its meaning or goes away.
inline constexpr int kJsonReportSchema = 1;

/// {"schema": 1, "backend": ..., "cases": [...], "summary": {...}} with one line per case, so that
/// two reports can be compared line by line. Two runs of the same cases give the same bytes but for
/// the fields named `seconds`, however many jobs they had.
/// `out` outlives the report.
std::unique_ptr<Report> make_json_report(std::ostream& out);

}  // namespace lockstep::harness
