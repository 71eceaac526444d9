// SPDX-License-Identifier: Apache-2.0
// A file for results that is either complete or not touched.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>

namespace lockstep::harness {

/// Opens at once, so that a path that cannot be written is known before any work is done. What is
/// written appears under `path` with `commit`, in one step, in the place of an older file; until
/// then, and for ever if the program ends early, the older file stays. "-" is the standard output,
/// and what is no regular file (a pipe, a device) is written directly.
class ResultFile {
 public:
  /// Errors: UsageError with path and reason if it cannot be written.
  explicit ResultFile(const std::string& path);
  /// Without `commit`: leaves nothing behind.
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  std::ostream& out();

  /// Errors: UsageError if not all could be written; the older file is then still there.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::harness
