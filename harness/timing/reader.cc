// SPDX-License-Identifier: Apache-2.0
// The schema of timing files at work; what claims may ask for.
#include "harness/timing/reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "harness/scenario/expand.h"
#include "harness/scenario/table_reader.h"
#include "harness/timing/blocks.h"
#include "harness/timing/name_filter.h"
#include "harness/timing/schema.h"

namespace lockstep::harness {

namespace {

/// Whether `only` is a regular expression that some point's name contains.
std::string trouble_with_only(const std::string& only, const TimingStudy& study) {
  try {
    const NameFilter filter(only);
    const bool found =
        std::any_of(study.points.begin(), study.points.end(),
                    [&](const TimingPoint& point) { return filter.finds(point.name); });
    if (found) return {};
  } catch (const UsageError& error) {
    return error.what();
  }
  return fmt::format("'{}' is found in the name of no point; the first is called '{}'", only,
                     study.points.front().name);
}

/// The paths of all axes, for messages.
std::vector<std::string> axis_paths(const TimingStudy& study) {
  std::vector<std::string> paths;
  for (const TimingAxis& axis : study.axes) {
    paths.insert(paths.end(), axis.paths.begin(), axis.paths.end());
  }
  return paths;
}

/// What is wrong with the axis of a claim; nothing for a claim without one.
std::string trouble_with_over(const ClaimSpec& claim, const TimingStudy& study) {
  const bool along = claim.claim != "bounds";
  if (!along && !claim.over.empty()) return "bounds hold at every point; expected no 'over'";
  if (!along) return {};
  const std::vector<std::string> paths = axis_paths(study);
  if (paths.empty()) return "the file has no axes; expected one in [vary]";
  if (claim.over.empty()) {
    return fmt::format("'{}' is about an axis; expected over = one of {}", claim.claim,
                       fmt::join(paths, ", "));
  }
  const auto axis = find_axis(study, claim.over);
  if (!axis) {
    return fmt::format("'{}' is no axis; expected one of {}{}", claim.over, fmt::join(paths, ", "),
                       did_you_mean(claim.over, paths));
  }
  const std::size_t least = claim.claim == "interior_minimum" ? 3 : 2;
  if (study.axes[*axis].values.size() >= least) return {};
  return fmt::format("axis '{}' has {} values; '{}' needs {} at least", claim.over,
                     study.axes[*axis].values.size(), claim.claim, least);
}

void check_claim(const ClaimSpec& claim, const std::string& path, const TimingStudy& study,
                 const TreeNode& root, Findings& findings) {
  const auto add = [&](const char* key, const std::string& message) {
    if (!message.empty()) findings.add(cite(root, {path + "." + key, path}), message);
  };
  add("over", trouble_with_over(claim, study));
  if (!claim.only.empty()) add("only", trouble_with_only(claim.only, study));
  const bool two_sided = claim.claim == "bounds" || claim.claim == "ratio";
  if (two_sided && !claim.min && !claim.max) {
    add("claim", fmt::format("'{}' says nothing without min or max", claim.claim));
  }
  if (!two_sided && claim.max) {
    add("max", fmt::format("'{}' knows a least factor only; expected min", claim.claim));
  }
  if (claim.min && claim.max && *claim.min > *claim.max) {
    add("min", fmt::format("min = {} is above max = {}", *claim.min, *claim.max));
  }
}

/// Axes may lead to what is simulated only.
void check_axes(const Variation& variation, Findings& findings) {
  for (const Axis& axis : variation.axes) {
    for (const Axis::Key& key : axis.keys) {
      const std::string head = split_path(key.path).front();
      if (head != "expect" && head != "title" && head != "kind") continue;
      findings.add(key.where, fmt::format("vary: '{}' cannot vary in a timing file", head));
    }
  }
}

TimingAxis axis_of(const Axis& axis) {
  TimingAxis out;
  for (const Axis::Key& key : axis.keys) {
    out.paths.push_back(key.path);
    out.labels.push_back(key.label);
  }
  for (const std::vector<TreeNode>& value : axis.values) {
    std::vector<std::string> texts;
    for (const TreeNode& node : value) texts.push_back(compact_text(node));
    out.values.push_back(fmt::format("{}", fmt::join(texts, ",")));
  }
  return out;
}

}  // namespace

bool is_timing_tree(const TreeNode& root) { return root.find("kind") != nullptr; }

void read_case(const TreeNode& root, TimingCase& value, Findings& findings) {
  read_root(root, value, findings);
}

std::vector<CaseFinding> check_case(TimingCase& value) {
  std::vector<CaseFinding> findings = resolve_blocks(value);
  if (!findings.empty()) return findings;
  for (sim::timing::SetupFinding& finding : sim::timing::check_setup(value)) {
    findings.push_back({std::move(finding.keys), std::move(finding.message)});
  }
  return findings;
}

TimingStudy expand_study(const TreeNode& root, Findings& findings) {
  Expansion<TimingCase> all = expand<TimingCase>(root, findings);
  check_axes(all.variation, findings);
  TimingStudy study;
  study.file = findings.file();
  study.title = all.base.title;
  study.claims = all.base.claims;
  if (!findings.empty()) return study;
  for (const Axis& axis : all.variation.axes) study.axes.push_back(axis_of(axis));
  for (Expanded<TimingCase>& point : all.points) {
    study.points.push_back({std::move(point.name), std::move(point.point), std::move(point.value)});
  }
  for (std::size_t i = 0; i < study.claims.size(); ++i) {
    check_claim(study.claims[i], fmt::format("expect.{}", i), study, root, findings);
  }
  return study;
}

std::optional<std::size_t> find_axis(const TimingStudy& study, const std::string& name) {
  for (std::size_t i = 0; i < study.axes.size(); ++i) {
    const TimingAxis& axis = study.axes[i];
    for (const std::vector<std::string>* names : {&axis.paths, &axis.labels}) {
      if (std::find(names->begin(), names->end(), name) != names->end()) return i;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::harness
