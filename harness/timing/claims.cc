// SPDX-License-Identifier: Apache-2.0
// Do the claims of a study hold, and if not, by how much?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "harness/timing/name_filter.h"
#include "harness/timing/predict.h"

namespace lockstep::harness {

namespace {

/// A point with the value that a claim is about.
struct Sample {
  std::string at;    ///< the point, for messages
  std::string step;  ///< its value on the claim's axis
  double value = 0.0;
};
using Line = std::vector<Sample>;

/// What was found on one line, or at one point.
struct Found {
  bool holds = true;
  std::string text;
};

std::string number(double value) { return fmt::format("{:.6g}", value); }

std::string range_text(const ClaimSpec& claim) {
  if (claim.min && claim.max) return number(*claim.min) + " to " + number(*claim.max);
  return claim.min ? "at least " + number(*claim.min) : "at most " + number(*claim.max);
}

/// ": short by 0.2 (4 %)", or nothing if the value is in the range.
std::string excess_text(double value, const ClaimSpec& claim) {
  const auto text = [&](const char* how, double by, double bound) {
    const std::string share =
        bound == 0.0 ? "" : fmt::format(" ({:.3g} %)", 100.0 * by / std::abs(bound));
    return fmt::format("{} by {}{}", how, number(by), share);
  };
  if (claim.min && value < *claim.min) return text("short", *claim.min - value, *claim.min);
  if (claim.max && value > *claim.max) return text("over", value - *claim.max, *claim.max);
  return {};
}

/// A ratio or a bound against min and max.
Found within(const std::string& subject, double value, const ClaimSpec& claim) {
  const std::string excess = excess_text(value, claim);
  Found found{excess.empty(), fmt::format("{} {}", subject, number(value))};
  found.text += found.holds ? fmt::format(" ({})", range_text(claim))
                            : fmt::format("; expected {}: {}", range_text(claim), excess);
  return found;
}

double ratio_of(double above, double below) {
  // Nothing over nothing is no change; something over nothing is more than any factor.
  if (below == 0.0) return above == 0.0 ? 1.0 : 1e300;
  return above / below;
}

Found judge_ratio(const ClaimSpec& claim, const Line& line) {
  const std::string subject =
      fmt::format("{} at {} is {} and at {} {}: ratio", claim.of, line.front().step,
                  number(line.front().value), line.back().step, number(line.back().value));
  if (line.back().value == 0.0) return {false, subject + " of something to nothing says nothing"};
  return within(subject, ratio_of(line.front().value, line.back().value), claim);
}

Found judge_trend(const ClaimSpec& claim, const Line& line) {
  const bool rises = claim.claim == "rises";
  for (std::size_t i = 1; i < line.size(); ++i) {
    const Sample& from = line[i - 1];
    const Sample& to = line[i];
    if (rises ? to.value >= from.value : to.value <= from.value) continue;
    return {false,
            fmt::format("{} {} from {} at {} to {} at {}, by {:.3g} %; expected it to {}", claim.of,
                        rises ? "falls" : "rises", number(from.value), from.step, number(to.value),
                        to.step, 100.0 * std::abs(ratio_of(to.value, from.value) - 1.0),
                        rises ? "rise" : "fall")};
  }
  const double first = line.front().value;
  const double last = line.back().value;
  if (first == last && !claim.min) {
    return {false,
            fmt::format("{} stays {} from {} to {}; expected it to {}", claim.of, number(first),
                        line.front().step, line.back().step, rises ? "rise" : "fall")};
  }
  const double factor = rises ? ratio_of(last, first) : ratio_of(first, last);
  ClaimSpec least = claim;
  least.min = claim.min.value_or(1.0);
  return within(
      fmt::format("{} {} from {} at {} to {} at {}: factor", claim.of, rises ? "rises" : "falls",
                  number(first), line.front().step, number(last), line.back().step),
      factor, least);
}

Found judge_interior_minimum(const ClaimSpec& claim, const Line& line) {
  const auto least = std::min_element(
      line.begin(), line.end(), [](const Sample& a, const Sample& b) { return a.value < b.value; });
  const std::string where =
      fmt::format("{} is least at {} ({})", claim.of, least->step, number(least->value));
  if (least == line.begin() || least + 1 == line.end()) {
    return {false, where + ", an end of the axis; expected it between the ends"};
  }
  const Sample& nearer = line.front().value < line.back().value ? line.front() : line.back();
  ClaimSpec factor = claim;
  factor.min = claim.min.value_or(1.0);
  Found found = within(fmt::format("{}; the better end, {}, has {}: factor", where, nearer.step,
                                   number(nearer.value)),
                       ratio_of(nearer.value, least->value), factor);
  // An end that is as good as the least is no worse than it.
  if (found.holds && nearer.value <= least->value) {
    found = {false, where + fmt::format(", but no better than {} at an end", nearer.step)};
  }
  return found;
}

Found judge_line(const ClaimSpec& claim, const Line& line) {
  if (claim.claim == "ratio") return judge_ratio(claim, line);
  if (claim.claim == "interior_minimum") return judge_interior_minimum(claim, line);
  return judge_trend(claim, line);
}

/// The points that a claim is about: lines along its axis by the rest of their place, or, without
/// an axis, one line of all.
std::map<std::vector<std::size_t>, Line> lines_of(
    const ClaimSpec& claim, const TimingStudy& study,
    const std::vector<sim::timing::Prediction>& predictions) {
  const auto axis = find_axis(study, claim.over);
  const NameFilter only(claim.only);
  std::map<std::vector<std::size_t>, Line> lines;
  for (std::size_t i = 0; i < study.points.size(); ++i) {
    const TimingPoint& point = study.points[i];
    if (!only.finds(point.name)) continue;
    std::vector<std::size_t> rest;
    Sample sample{point.name, "", quantity(claim.of, point.setup, predictions[i])};
    if (axis) {
      rest = point.at;
      sample.step = study.axes[*axis].values[point.at[*axis]];
      rest[*axis] = 0;
    }
    lines[rest].push_back(std::move(sample));
  }
  return lines;
}

ClaimOutcome judge_claim(const ClaimSpec& claim, const TimingStudy& study,
                         const std::vector<sim::timing::Prediction>& predictions) {
  std::vector<Found> found;
  for (const auto& [rest, line] : lines_of(claim, study, predictions)) {
    if (claim.claim == "bounds") {
      for (const Sample& sample : line) {
        found.push_back(within(claim.of + " is", sample.value, claim));
        if (!sample.at.empty()) found.back().text += " at " + sample.at;
      }
    } else if (line.size() > (claim.claim == "interior_minimum" ? 2U : 1U)) {
      found.push_back(judge_line(claim, line));
      if (study.axes.size() > 1) found.back().text += " on the line of " + line.front().at;
    }
  }
  const std::string head = claim.over.empty() ? claim.claim : claim.claim + " over " + claim.over;
  if (found.empty()) return {false, head + ": the points that are left form no line to judge"};
  const auto broken =
      std::find_if(found.begin(), found.end(), [](const Found& f) { return !f.holds; });
  const bool holds = broken == found.end();
  const auto num_broken =
      std::count_if(found.begin(), found.end(), [](const Found& f) { return !f.holds; });
  std::string text = head + ": " + (holds ? found.front() : *broken).text;
  if (holds && found.size() > 1) text += fmt::format(", and {} more", found.size() - 1);
  if (!holds && num_broken > 1) text += fmt::format("; and {} more", num_broken - 1);
  return {holds, text};
}

}  // namespace

std::vector<ClaimOutcome> judge_claims(const TimingStudy& study,
                                       const std::vector<sim::timing::Prediction>& predictions) {
  LOCKSTEP_CHECK(predictions.size() == study.points.size(), "{} predictions of {} points",
                 predictions.size(), study.points.size());
  std::vector<ClaimOutcome> outcomes;
  for (const ClaimSpec& claim : study.claims) {
    outcomes.push_back(judge_claim(claim, study, predictions));
  }
  return outcomes;
}

}  // namespace lockstep::harness
