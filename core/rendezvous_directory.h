// SPDX-License-Identifier: Apache-2.0
// A private directory as the store in which ranks meet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/rendezvous_store.h"

namespace lockstep {

/// A private directory (mode 0700) for the rendezvous of one run, and the run's token.
///
/// Whoever starts the ranks creates it and hands `path()` and `token()` to each of them. It may be
/// removed once a first collective has ended on every rank; until then ranks may still need it.
class RendezvousDirectory {
 public:
  /// Makes a new directory under `parent` (empty: $TMPDIR, else /tmp) with a new random token.
  /// Errors: UsageError if it cannot be made.
  static RendezvousDirectory create(const std::string& parent = {});

  /// Takes over the removal of a directory that another process, such as a parent that has died,
  /// created. Errors: UsageError as for `check_rendezvous_directory`.
  static RendezvousDirectory adopt(std::string path, std::string token);

  /// Removes the directory and all in it, unless this is a forked copy of the process that made
  /// this object.
  ~RendezvousDirectory();
  RendezvousDirectory(RendezvousDirectory&& other) noexcept;
  RendezvousDirectory& operator=(RendezvousDirectory&& other) noexcept;

  const std::string& path() const { return path_; }
  const std::string& token() const { return token_; }

  /// Removes it now; later calls do nothing.
  void remove() noexcept;

 private:
  RendezvousDirectory(std::string path, std::string token);

  std::string path_, token_;
  std::int64_t owner_pid_ = -1;
};

/// Errors: LaunchError `store_unusable` unless `path` is a directory (no link) that belongs to this
///         user and that nobody else may read, write or enter.
void check_rendezvous_directory(const std::string& path);

/// The files of such a directory. Errors: as for `check_rendezvous_directory`.
std::unique_ptr<RendezvousStore> open_rendezvous_directory(const std::string& path);

}  // namespace lockstep
