// SPDX-License-Identifier: Apache-2.0
// Which of a case's expectations holds where.
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "harness/scenario.h"

namespace lockstep::harness {

std::optional<LibTorchVersion> version_of(std::string_view text) {
  LibTorchVersion version;
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.second);
  if (minor.ec != std::errc() || minor.ptr != end) return std::nullopt;
  if (version.first < 0 || version.second < 0) return std::nullopt;
  return version;
}

const ExpectSpec* known_difference(const Case& value, LibTorchVersion version) {
  for (const ExpectSpec& torch : value.expect_torch) {
    const bool is_since = torch.since.empty() || version_of(torch.since) <= version;
    const bool is_before = torch.before.empty() || version_of(torch.before) > version;
    if (is_since && is_before) return &torch;
  }
  return nullptr;
}

const ExpectSpec& expectation(const Case& value, std::string_view backend) {
  const ExpectSpec* torch = value.ddp.sync == "torch" ? known_difference(value) : nullptr;
  if (torch) return *torch;
  if (backend == "sim" && value.expect_sim) return *value.expect_sim;
  if (backend != "sim" && value.expect_gloo) return *value.expect_gloo;
  return value.expect;
}

void expect_every_schedule(Case& value) {
  const std::string all = ExpectSpec().schedules;
  value.expect.schedules = all;
  for (std::optional<ExpectSpec>* expect : {&value.expect_sim, &value.expect_gloo}) {
    if (*expect) (*expect)->schedules = all;
  }
  for (ExpectSpec& expect : value.expect_torch) expect.schedules = all;
}

}  // namespace lockstep::harness
