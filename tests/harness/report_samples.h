// SPDX-License-Identifier: Apache-2.0
// Hand-made results, one per outcome, for the tests of the reports.
#pragma once

#include <string>
#include <vector>

#include "harness/outcome.h"
#include "harness/report/report.h"

namespace lockstep::test {

/// As expected, within a bound, with a table of two steps.
harness::CaseResult sample_within_bound();
/// Not as expected: rank 1 got twice the gradient.
harness::CaseResult sample_diverged();
/// As expected: rank 1 ended, rank 0 waits.
harness::CaseResult sample_deadlock();
/// Not as expected: two ranks met with different collectives.
harness::CaseResult sample_error();
/// Not as expected: a rank of a real run died of SIGSEGV.
harness::CaseResult sample_crash();
harness::CaseResult sample_skipped();
harness::CaseResult sample_defect();
/// Every text in it is hostile to XML, to terminals, or is no UTF-8.
harness::CaseResult sample_nasty();

std::vector<harness::CaseResult> all_samples();

/// begin, every sample, end; with a summary counted from them.
void feed_samples(harness::Report& report);

}  // namespace lockstep::test
