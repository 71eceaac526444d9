// SPDX-License-Identifier: Apache-2.0
// What a campaign keeps on disk: findings, and the inputs of cases in progress.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/suite.h"

namespace lockstep::harness::fuzz {

/// The folder in which campaigns without a corpus keep their inputs and findings: one per user, in
/// $TMPDIR or /tmp. It is made with the first file.
std::string scratch_folder();

/// Writes `FOLDER/KIND-HASH.toml`, complete or not at all, and makes the folder if need be. The
/// hash is that of `text`, so that no file is ever replaced by another: one of that name says the
/// same. `head` is put in front, as comment lines without their "# ".
/// Errors: UsageError if it cannot be written.
std::string write_finding(const std::string& folder, const std::string& kind,
                          const std::vector<std::string>& head, const std::string& text);

/// An input that a campaign left behind which was killed.
struct Leftover {
  std::string path;
  std::string text;
};

/// Those of campaigns that are not running any more; empty ones are removed.
std::vector<Leftover> leftovers(const std::string& folder);

/// The inputs of the cases in progress, one file for each slot of a suite: `.running-PID-SLOT`, or
/// with another number behind it where that is left behind. They are there before the case runs,
/// so that whatever ends all processes leaves them behind; the destructor takes them away.
class RunningInputs {
 public:
  explicit RunningInputs(std::string folder) : folder_(std::move(folder)) {}
  ~RunningInputs();
  RunningInputs(const RunningInputs&) = delete;
  RunningInputs& operator=(const RunningInputs&) = delete;

  /// Errors: UsageError if it cannot be written.
  void begins(std::int64_t slot, const CaseText& text);
  /// Takes the file of a slot away, if there is one.
  void ends(std::int64_t slot);

 private:
  const std::string folder_;
  std::vector<int> fds_;  ///< by slot; -1: not opened yet
  std::vector<std::string> paths_;
};

}  // namespace lockstep::harness::fuzz
