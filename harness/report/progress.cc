// SPDX-License-Identifier: Apache-2.0
// How far a long run is, on a terminal.
#include "harness/report/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "harness/wall_clock.h"

namespace lockstep::harness {

Progress::Progress(std::int64_t num_cases)
    : on_(isatty(STDERR_FILENO) == 1), num_cases_(num_cases), start_s_(wall_seconds()) {}

Progress::~Progress() { clear(); }

void Progress::update(std::int64_t num_done) {
  if (!on_) return;
  constexpr double kInterval_s = 0.1;
  const double now_s = wall_seconds();
  if (now_s - last_s_ < kInterval_s) return;
  const double spent_s = now_s - start_s_;
  const double rate = spent_s > 0 ? static_cast<double>(num_done) / spent_s : 0.0;
  const std::string of = num_cases_ == kUnknown ? "" : fmt::format(" of {}", num_cases_);
  fmt::print(stderr, "\r{}{} cases, {:.1f} cases/s\x1b[K", num_done, of, rate);
  std::fflush(stderr);
  visible_ = true;
  last_s_ = now_s;
}

void Progress::clear() {
  if (!visible_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  visible_ = false;
}

}  // namespace lockstep::harness
