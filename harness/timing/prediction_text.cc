// SPDX-License-Identifier: Apache-2.0
// Tables and time lines of predictions.
#include "harness/timing/prediction_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "harness/report/report.h"
#include "harness/report/text_style.h"
#include "sim/timing/step_plan.h"

namespace lockstep::harness {

using sim::timing::CollectiveTimes;
using sim::timing::Prediction;
using sim::timing::Ps;
using sim::timing::Setup;
using sim::timing::to_ms;

namespace {

constexpr std::size_t kMaxRows = 24;

/// 12 B, 1.5 KB, 280 GB.
std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  return fmt::format("{:.4g} {}", bytes, units[unit]);
}

std::string label_of(const CollectiveTimes& times, const Setup& setup) {
  const std::string bucket = times.bucket < 0 ? "used map" : fmt::format("bucket {}", times.bucket);
  const bool several = setup.train.sync_on == "every" && setup.train.micro_batches > 1;
  return several ? fmt::format("{}, {}", times.micro_batch, bucket) : bucket;
}

/// A row of a time line: text from one moment to another.
class Row {
 public:
  explicit Row(double whole) : whole_(whole), cells_(kWidth, ' ') {}

  Row& fill(Ps from_ps, Ps to_ps, char mark) {
    const std::size_t first = column(from_ps);
    const std::size_t last = std::max(first + 1, column(to_ps));
    for (std::size_t i = first; i < std::min(last, kWidth); ++i) cells_[i] = mark;
    return *this;
  }
  std::string line(const std::string& label) const {
    std::string text = fmt::format("  {:<14} |{}", label, cells_);
    text.erase(text.find_last_not_of(' ') + 1);
    return text + '\n';
  }

  static constexpr std::size_t kWidth = 76;

 private:
  std::size_t column(Ps at_ps) const {
    const double share = whole_ > 0 ? static_cast<double>(at_ps) / whole_ : 0.0;
    return std::min(kWidth - 1, static_cast<std::size_t>(share * kWidth));
  }

  double whole_;
  std::string cells_;
};

std::string time_line(const Setup& setup, const Prediction& prediction) {
  const std::vector<CollectiveTimes>& all = prediction.timeline;
  const Ps update_ps = all.back().end_ps;
  const Ps end_ps = update_ps + prediction.optimizer_ps;
  const auto whole = static_cast<double>(end_ps);
  std::string text =
      fmt::format("time line of rank 0 in the last step, {:.6g} ms:\n", to_ms(end_ps));
  Row forward(whole);
  Row backward(whole);
  Ps begin_ps = 0;
  for (std::size_t i = 0; i < prediction.backward_begin_ps.size(); ++i) {
    forward.fill(begin_ps, prediction.backward_begin_ps[i], '>');
    backward.fill(prediction.backward_begin_ps[i], prediction.backward_end_ps[i], '<');
    // The next segment begins when the last collective of this backward ends.
    for (const CollectiveTimes& times : all) {
      if (times.ready_ps <= prediction.backward_end_ps[i]) begin_ps = times.end_ps;
    }
  }
  const bool accumulates = setup.train.sync_on == "last" && setup.train.micro_batches > 1;
  text += forward.line(accumulates ? "until backward" : "forward");
  text += backward.line("backward");
  for (std::size_t i = 0; i < std::min(all.size(), kMaxRows); ++i) {
    Row row(whole);
    if (all[i].begin_ps > all[i].ready_ps) row.fill(all[i].ready_ps, all[i].begin_ps, '.');
    text += row.fill(all[i].begin_ps, all[i].end_ps, '=').line(label_of(all[i], setup));
  }
  if (all.size() > kMaxRows) text += fmt::format("  ... {} more\n", all.size() - kMaxRows);
  if (prediction.optimizer_ps > 0) text += Row(whole).fill(update_ps, end_ps, '#').line("update");
  return text;
}

std::string timeline_table(const Setup& setup, const Prediction& prediction) {
  std::string text =
      fmt::format("  {:<14} {:>8} {:>10}  {:<16} {:>10} {:>10} {:>10}\n", "collective", "tensors",
                  "bytes", "algorithm", "ready ms", "begin ms", "end ms");
  for (std::size_t i = 0; i < std::min(prediction.timeline.size(), kMaxRows); ++i) {
    const CollectiveTimes& times = prediction.timeline[i];
    text += fmt::format("  {:<14} {:>8} {:>10}  {:<16} {:>10.3f} {:>10.3f} {:>10.3f}\n",
                        label_of(times, setup), times.num_parameters, bytes_text(times.bytes),
                        to_string(times.algorithm), to_ms(times.ready_ps), to_ms(times.begin_ps),
                        to_ms(times.end_ps));
  }
  if (prediction.timeline.size() > kMaxRows) {
    text += fmt::format("  ... {} more (--json has all)\n", prediction.timeline.size() - kMaxRows);
  }
  return text;
}

/// Whether an axis is something to be chosen: of two worlds the smaller one is always quicker.
bool is_a_choice(const TimingAxis& axis) {
  const std::string& path = axis.paths.front();
  return path.rfind("ddp.", 0) == 0 || path.rfind("train.", 0) == 0 || path == "network.algorithm";
}

/// The axis's values by step time, on the line of each combination of the other axes.
std::string best_of_axis(const TimingStudy& study, const std::vector<Prediction>& predictions,
                         std::size_t axis) {
  constexpr std::size_t kMaxLines = 8;
  std::map<std::vector<std::size_t>, std::vector<std::size_t>> lines;
  for (std::size_t i = 0; i < study.points.size(); ++i) {
    std::vector<std::size_t> rest = study.points[i].at;
    rest[axis] = 0;
    lines[rest].push_back(i);
  }
  const auto ms = [&](std::size_t i) {
    return quantity("micro_batch_ms", study.points[i].setup, predictions[i]);
  };
  const auto quicker = [&](std::size_t a, std::size_t b) { return ms(a) < ms(b); };
  std::string text;
  std::size_t num_lines = 0;
  for (const auto& [rest, points] : lines) {
    if (points.size() < 2 || ++num_lines > kMaxLines) continue;
    const std::size_t best = *std::min_element(points.begin(), points.end(), quicker);
    const std::size_t worst = *std::max_element(points.begin(), points.end(), quicker);
    text += fmt::format("  {}: {:.6g} ms, {:.3f} times as quick as {}\n", study.points[best].name,
                        ms(best), ms(best) > 0 ? ms(worst) / ms(best) : 1,
                        study.axes[axis].values[study.points[worst].at[axis]]);
  }
  if (num_lines > kMaxLines) text += fmt::format("  ... {} more\n", num_lines - kMaxLines);
  if (text.empty()) return text;
  return fmt::format("least time per micro-batch over {}:\n{}", study.axes[axis].labels.front(),
                     text);
}

}  // namespace

std::string describe_point(const Setup& setup, const Prediction& prediction) {
  const auto of = [&](const char* name) { return quantity(name, setup, prediction); };
  const std::int64_t nodes =
      std::max<std::int64_t>(1, setup.world.ranks / setup.world.ranks_per_node);
  std::string text = fmt::format(
      "{} ranks on {} nodes; {:.4g} million parameters in {} tensors, {} of gradients in {} "
      "buckets\n",
      setup.world.ranks, nodes, static_cast<double>(prediction.num_elements) / 1e6,
      sim::timing::num_parameters(setup), bytes_text(prediction.gradient_bytes), of("buckets"));
  text += fmt::format("  step            {:>12.3f} ms   slowest {:.3f} ms, {:.6g} samples/s\n",
                      of("step_ms"), of("slowest_step_ms"), of("samples_per_s"));
  text += fmt::format("  compute         {:>12.3f} ms   update {:.3f} ms\n", of("compute_ms"),
                      to_ms(prediction.optimizer_ps));
  text += fmt::format("  communication   {:>12.3f} ms   of it {:.1f} % overlapped\n",
                      of("communication_ms"), 100 * of("overlap_share"));
  text += fmt::format("  exposed         {:>12.3f} ms   {:.1f} % of the step\n", of("exposed_ms"),
                      100 * of("exposed_share"));
  text += fmt::format("  on the wire     {:>12} per rank and step, {} in all\n",
                      bytes_text(of("wire_bytes_per_rank")), bytes_text(of("wire_bytes")));
  return text + timeline_table(setup, prediction) + time_line(setup, prediction);
}

std::string describe_points(const TimingStudy& study, const std::vector<Prediction>& predictions) {
  LOCKSTEP_CHECK(predictions.size() == study.points.size(), "{} predictions of {} points",
                 predictions.size(), study.points.size());
  std::size_t width = 5;
  for (const TimingPoint& point : study.points) width = std::max(width, point.name.size());
  std::string text =
      fmt::format("{:<{}} {:>12} {:>12} {:>10} {:>8} {:>13} {:>13}\n", "point", width, "step ms",
                  "exposed ms", "overlap %", "buckets", "bytes/rank", "samples/s");
  for (std::size_t i = 0; i < study.points.size(); ++i) {
    const auto of = [&](const char* name) {
      return quantity(name, study.points[i].setup, predictions[i]);
    };
    text += fmt::format("{:<{}} {:>12.3f} {:>12.3f} {:>10.1f} {:>8} {:>13} {:>13.6g}\n",
                        study.points[i].name, width, of("step_ms"), of("exposed_ms"),
                        100 * of("overlap_share"), of("buckets"),
                        bytes_text(of("wire_bytes_per_rank")), of("samples_per_s"));
  }
  for (std::size_t axis = 0; axis < study.axes.size(); ++axis) {
    if (is_a_choice(study.axes[axis])) text += best_of_axis(study, predictions, axis);
  }
  return text;
}

std::string describe_claims(const std::vector<ClaimOutcome>& claims, bool colour) {
  std::string text;
  for (const ClaimOutcome& claim : claims) {
    text +=
        verdict_mark(claim.holds ? Verdict::kPassed : Verdict::kFailed, colour) + claim.text + '\n';
  }
  return text;
}

}  // namespace lockstep::harness
