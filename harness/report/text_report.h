// SPDX-License-Identifier: Apache-2.0
// The report for people: a line per file or case, failures in full, the counts.
#pragma once

#include <iosfwd>
#include <memory>

#include "harness/report/report.h"

namespace lockstep::harness {

struct TextReportOptions {
  bool verbose = false;  ///< a line per case, not only per file
  bool colour = false;
};

/// Cases that are not as expected are written in full as soon as they are done; the others count
/// into their file's line. The last line is "N passed, N failed, N skipped".
/// `out` outlives the report; it is flushed after every line.
std::unique_ptr<Report> make_text_report(std::ostream& out, const TextReportOptions& options);

/// The counts in words: what came out, speed, comparisons with the simulator, and the last line.
std::string describe_summary(const SuiteSummary& summary);

}  // namespace lockstep::harness
