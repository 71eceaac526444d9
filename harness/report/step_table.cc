// SPDX-License-Identifier: Apache-2.0
// The table of steps: losses and parameter checksums of reference and subject side by side.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "harness/report/printable.h"
#include "harness/report/text_case.h"

namespace lockstep::harness {

namespace {

constexpr std::size_t kNumColumns = 5;
using Row = std::array<std::string, kNumColumns>;

std::string checksum_text(std::uint64_t value) { return fmt::format("{:016x}", value); }

/// The mean over ranks, to stand beside the loss of one process on all the data.
std::string mean_loss(const std::vector<double>& losses) {
  if (losses.empty()) return "-";
  double sum = 0.0;
  for (const double loss : losses) sum += loss;
  return fmt::format("{:.9g}", sum / static_cast<double>(losses.size()));
}

/// True if some rank's parameters are not the reference's, or not the other ranks'.
bool differs(const StepSummary& step) {
  const auto made = std::find_if(step.checksums.begin(), step.checksums.end(),
                                 [](std::uint64_t checksum) { return checksum != 0; });
  const std::uint64_t expected = step.reference_checksum != 0   ? step.reference_checksum
                                 : made == step.checksums.end() ? 0
                                                                : *made;
  return std::any_of(made, step.checksums.end(),
                     [&](std::uint64_t checksum) { return checksum != 0 && checksum != expected; });
}

/// "4f…00 on all ranks", or one checksum per group of ranks that agree.
std::string subject_checksums(const StepSummary& step) {
  if (step.checksums.empty()) return "-";
  std::vector<std::uint64_t> order;
  std::map<std::uint64_t, std::vector<std::int64_t>> groups;
  for (std::size_t rank = 0; rank < step.checksums.size(); ++rank) {
    if (step.checksums[rank] == 0) continue;  // has not made the step
    auto& group = groups[step.checksums[rank]];
    if (group.empty()) order.push_back(step.checksums[rank]);
    group.push_back(static_cast<std::int64_t>(rank));
  }
  if (order.size() == 1) return checksum_text(order.front());
  std::string out;
  for (const std::uint64_t checksum : order) {
    if (!out.empty()) out += "; ";
    out += fmt::format("{} {}", rank_list(groups[checksum]), checksum_text(checksum));
  }
  return out;
}

Row make_row(const StepSummary& step) {
  return {std::to_string(step.step),
          step.reference_loss ? fmt::format("{:.9g}", *step.reference_loss) : "-",
          mean_loss(step.losses),
          step.reference_checksum != 0 ? checksum_text(step.reference_checksum) : "-",
          subject_checksums(step) + (differs(step) ? "  <- differ" : "")};
}

/// Which steps of a long table are shown: both ends and the surroundings of the first difference.
std::vector<bool> steps_shown(const std::vector<StepSummary>& steps, bool every_step) {
  constexpr std::size_t kMaxRows = 12, kAround = 2;
  std::vector<bool> shown(steps.size(), every_step || steps.size() <= kMaxRows);
  const auto first =
      static_cast<std::size_t>(std::find_if(steps.begin(), steps.end(), differs) - steps.begin());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool at_end = i < kAround || i + kAround >= steps.size();
    const bool near_first = first < steps.size() && i + kAround >= first && i <= first + kAround;
    if (at_end || near_first) shown[i] = true;
  }
  return shown;
}

}  // namespace

std::string describe_steps(const std::vector<StepSummary>& steps, bool every_step) {
  if (steps.empty()) return "";
  const std::vector<bool> shown = steps_shown(steps, every_step);
  std::vector<Row> rows = {
      {"step", "reference loss", "DDP loss (mean)", "reference parameters", "DDP parameters"}};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (shown[i]) {
      rows.push_back(make_row(steps[i]));
    } else if (i > 0 && shown[i - 1]) {
      rows.push_back({"...", "", "", "", ""});
    }
  }
  std::array<std::size_t, kNumColumns> widths{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < kNumColumns; ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line = fmt::format("    {:>{}}  {:>{}}  {:>{}}  {:<{}}  {}", row[0], widths[0],
                                   row[1], widths[1], row[2], widths[2], row[3], widths[3], row[4]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

}  // namespace lockstep::harness
