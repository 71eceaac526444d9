// SPDX-License-Identifier: Apache-2.0
// Files and folders to cases: finds the files, expands their axes, checks every case.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "core/check.h"
#include "harness/scenario.h"
#include "harness/scenario/expand.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/reader.h"
#include "harness/scenario/tree.h"
#include "harness/timing/reader.h"

namespace lockstep::harness {

namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxFileBytes = 4 << 20;

std::string join_findings(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += (text.empty() ? "" : "\n") + to_string(finding);
  return text;
}

/// Adds what one text stands for; findings are appended to `all`.
void parse(std::string_view text, const std::string& file, ScenarioSet& set,
           std::vector<Finding>& all) {
  Findings findings(file);
  TreeNode root;
  if (parse_tree(text, root, findings)) {
    if (root.entries.empty()) {
      findings.add({1, 1},
                   "the file says nothing; expected a scenario that starts with schema = 1 "
                   "(`lockstep new NAME` writes one)");
    } else if (is_timing_tree(root)) {
      set.studies.push_back(expand_study(root, findings));
    } else {
      for (Expanded<Case>& point : expand<Case>(root, findings).points) {
        set.cases.push_back({file, std::move(point.name), std::move(point.value)});
      }
    }
  }
  std::vector<Finding> found = findings.take();
  all.insert(all.end(), std::make_move_iterator(found.begin()),
             std::make_move_iterator(found.end()));
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

ScenarioSet parse_text(std::string_view text, const std::string& file) {
  std::vector<Finding> findings;
  ScenarioSet set;
  set.num_files = 1;
  parse(text, file, set, findings);
  if (!findings.empty()) throw ScenarioError(std::move(findings));
  return set;
}

std::vector<NamedCase> parse_scenario_text(std::string_view text, const std::string& file) {
  ScenarioSet set = parse_text(text, file);
  LOCKSTEP_USAGE(set.studies.empty(), "{} is a timing file; expected a scenario", file);
  return std::move(set.cases);
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
      if (read_file(file, text, findings)) parse(text, file, set, findings);
    }
  }
  if (!findings.empty()) throw ScenarioError(std::move(findings));
  return set;
}

}  // namespace lockstep::harness
