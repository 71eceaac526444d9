// SPDX-License-Identifier: Apache-2.0
// The report for continuous integration: JUnit XML.
#pragma once

#include <iosfwd>
#include <memory>

#include "harness/report/report.h"

namespace lockstep::harness {

/// A test suite per file and a test case per case. A case that is not as expected has a `failure`,
/// a defect an `error`, both with the text report of the case; a case that was not run is
/// `skipped`. Everything is written by `end`; what XML cannot hold is replaced as `printable` does.
/// `out` outlives the report.
std::unique_ptr<Report> make_junit_report(std::ostream& out);

}  // namespace lockstep::harness
