// SPDX-License-Identifier: Apache-2.0
// Files and folders to cases: finds the files, expands their axes, checks every case.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "harness/scenario.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/reader.h"
#include "harness/scenario/tree.h"
#include "harness/scenario/variation.h"

namespace lockstep::harness {

namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxFileBytes = 4 << 20;
constexpr std::size_t kMaxFindingsOfCases = 50;

std::string join_findings(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += (text.empty() ? "" : "\n") + to_string(finding);
  return text;
}

/// The first key that the file has; if it has none, the table that the first would be in.
Position cite(const TreeNode& tree, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const Located located = locate(tree, key);
    if (located.complete) return located.where;
  }
  return locate(tree, keys.front()).where;
}

/// Contradictions of all cases of a file: each once, with the first case that has it.
class CaseFindings {
 public:
  void check(const Case& value, const TreeNode& tree, const Findings& read,
             const std::string& name) {
    for (const CaseFinding& finding : check_case(value)) {
      const bool follows_from_another =
          std::any_of(finding.keys.begin(), finding.keys.end(),
                      [&](const std::string& key) { return read.is_spoiled(key); });
      if (follows_from_another) continue;
      const Position where = cite(tree, finding.keys);
      const auto [it, is_new] =
          seen_.try_emplace(std::make_tuple(where.line, where.column, finding.message));
      if (is_new) it->second = {where, name, 0};
      ++it->second.num_cases;
    }
  }

  bool full() const { return seen_.size() >= kMaxFindingsOfCases; }

  void move_to(Findings& findings) const {
    for (const auto& [key, seen] : seen_) {
      std::string message = std::get<2>(key);
      if (!seen.name.empty()) {
        message += seen.num_cases == 1
                       ? fmt::format(" (case {})", seen.name)
                       : fmt::format(" (case {} and {} more)", seen.name, seen.num_cases - 1);
      }
      findings.add(seen.where, std::move(message));
    }
  }

 private:
  struct Seen {
    Position where;
    std::string name;
    std::int64_t num_cases = 0;
  };
  std::map<std::tuple<std::int64_t, std::int64_t, std::string>, Seen> seen_;
};

/// Reads every axis value once, the other axes being as the file has them.
void try_axis_values(const TreeNode& root, const Variation& variation, Findings& findings) {
  for (const Axis& axis : variation.axes) {
    for (std::size_t k = 0; k < axis.keys.size(); ++k) {
      Position last{0, 0};
      for (const std::vector<TreeNode>& value : axis.values) {
        // The values of { first, count } share a position; one finding is enough for them.
        const Position where = value[k].where;
        if (where.line == last.line && where.column == last.column) continue;
        TreeNode tree = root;
        set_at_path(tree, axis.keys[k].path, axis.keys[k].where, value[k]);
        const std::size_t before = findings.size();
        Case ignored;
        read_case(tree, ignored, findings);
        if (findings.size() > before) last = where;
      }
    }
  }
}

std::vector<NamedCase> expand(const TreeNode& root, const std::string& file, Findings& findings) {
  Case base;
  read_case(root, base, findings);
  const bool base_is_good = findings.empty();
  const Variation variation = read_variation(root, findings);
  if (base_is_good && !findings.empty()) return {};
  // The file's own findings would come again with every axis value.
  Findings of_axes(findings.file());
  if (base_is_good) try_axis_values(root, variation, of_axes);
  const bool axes_are_good = of_axes.empty();
  for (Finding& finding : of_axes.take()) {
    findings.add({finding.line, finding.column}, std::move(finding.message));
  }
  if (!variation.axes.empty() && !(base_is_good && axes_are_good)) return {};

  std::vector<NamedCase> cases;
  CaseFindings contradictions;
  for (const Point& point : choose_points(variation, root, base.seed, findings)) {
    const TreeNode tree = variation.axes.empty() ? root : tree_at(root, variation, point);
    NamedCase named{file, name_at(variation, point), {}};
    Findings again(findings.file());
    read_case(tree, named.value, again);
    contradictions.check(named.value, tree, again, named.name);
    if (contradictions.full()) break;
    cases.push_back(std::move(named));
  }
  contradictions.move_to(findings);
  return cases;
}

/// Cases of one text; findings are appended to `all`.
std::vector<NamedCase> parse(std::string_view text, const std::string& file,
                             std::vector<Finding>& all) {
  Findings findings(file);
  TreeNode root;
  std::vector<NamedCase> cases;
  if (parse_tree(text, root, findings)) {
    if (root.entries.empty()) {
      findings.add({1, 1},
                   "the file says nothing; expected a scenario that starts with schema = 1 "
                   "(`lockstep new NAME` writes one)");
    } else {
      cases = expand(root, file, findings);
    }
  }
  std::vector<Finding> found = findings.take();
  all.insert(all.end(), std::make_move_iterator(found.begin()),
             std::make_move_iterator(found.end()));
  return cases;
}

std::vector<std::string> siblings_of(const fs::path& path) {
  std::vector<std::string> names;
  std::error_code ignored;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored)) {
    names.push_back(it->path().filename().string());
    if (ignored || names.size() > 10'000) break;
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The *.toml below a folder, sorted by their path.
std::vector<std::string> files_below(const std::string& folder, std::vector<Finding>& findings) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  while (!error && it != end) {
    std::error_code ignored;
    if (it->path().extension() == ".toml" && it->is_regular_file(ignored)) {
      files.push_back(it->path().string());
    }
    it.increment(error);
  }
  if (error) {
    findings.push_back({folder, 0, 0, "cannot read the folder: " + error.message()});
  } else if (files.empty()) {
    findings.push_back({folder, 0, 0, "no *.toml in this folder or below it"});
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_of(const std::string& path, std::vector<Finding>& findings) {
  if (path.empty()) {
    findings.push_back({"\"\"", 0, 0, "the path is empty; expected a file or a folder"});
    return {};
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return files_below(path, findings);
  if (fs::is_regular_file(status)) return {path};
  if (status.type() == fs::file_type::not_found) {
    findings.push_back({path, 0, 0,
                        "no such file or folder" +
                            did_you_mean(fs::path(path).filename().string(), siblings_of(path))});
  } else if (fs::exists(status)) {
    findings.push_back({path, 0, 0, "neither a file nor a folder; expected a scenario file"});
  } else {
    findings.push_back({path, 0, 0, "cannot be read: " + error.message()});
  }
  return {};
}

bool read_file(const std::string& file, std::string& text, std::vector<Finding>& findings) {
  std::error_code ignored;
  if (fs::file_size(file, ignored) > kMaxFileBytes && !ignored) {
    findings.push_back(
        {file, 0, 0, fmt::format("larger than {} bytes; expected a scenario", kMaxFileBytes)});
    return false;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "rb"),
                                                               &std::fclose);
  if (stream) {
    char block[1 << 14];
    std::size_t num_bytes = 0;
    while ((num_bytes = std::fread(block, 1, sizeof block, stream.get())) > 0) {
      text.append(block, num_bytes);
    }
  }
  if (!stream || std::ferror(stream.get()) != 0) {
    findings.push_back({file, 0, 0, fmt::format("cannot be read: {}", std::strerror(errno))});
    return false;
  }
  return true;
}

}  // namespace

std::string to_string(const Finding& finding) {
  if (finding.line == 0) return fmt::format("{}: {}", finding.file, finding.message);
  return fmt::format("{}:{}:{}: {}", finding.file, finding.line, finding.column, finding.message);
}

ScenarioError::ScenarioError(std::vector<Finding> findings)
    : UsageError(join_findings(findings)), findings_(std::move(findings)) {}

std::vector<NamedCase> parse_scenario_text(std::string_view text, const std::string& file) {
  std::vector<Finding> findings;
  std::vector<NamedCase> cases = parse(text, file, findings);
  if (!findings.empty()) throw ScenarioError(std::move(findings));
  return cases;
}

ScenarioSet load_scenarios(const std::vector<std::string>& paths) {
  std::vector<Finding> findings;
  ScenarioSet set;
  std::set<std::string> seen;
  if (paths.empty())
    findings.push_back({"", 0, 0, "no path; expected a scenario file or a folder"});
  for (const std::string& path : paths) {
    for (const std::string& file : files_of(path, findings)) {
      if (!seen.insert(fs::absolute(file).lexically_normal().string()).second) continue;
      ++set.num_files;
      std::string text;
      if (!read_file(file, text, findings)) continue;
      std::vector<NamedCase> cases = parse(text, file, findings);
      set.cases.insert(set.cases.end(), std::make_move_iterator(cases.begin()),
                       std::make_move_iterator(cases.end()));
    }
  }
  if (!findings.empty()) throw ScenarioError(std::move(findings));
  return set;
}

}  // namespace lockstep::harness
