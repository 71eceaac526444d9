// SPDX-License-Identifier: Apache-2.0
// What a campaign keeps on disk: findings, and the inputs of cases in progress.
#include "harness/fuzz/campaign/corpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>

#include "core/check.h"
#include "harness/report/result_file.h"

namespace lockstep::harness::fuzz {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRunningPrefix = ".running-";

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  LOCKSTEP_USAGE(!error, "cannot make the folder '{}': {}", folder, error.message());
}

/// The part of a kind that every file system takes.
std::string file_name_of(std::string kind) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::replace_if(
      kind.begin(), kind.end(), [&](char c) { return !is_plain(c); }, '-');
  return kind;
}

/// Of a whole file. The lock is the process's own: children do not have it, and it ends with the
/// process, however that ends.
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

bool is_in_use(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return true;  // Not ours to judge.
  struct flock lock = whole_file();
  const bool locked = fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  close(fd);
  return locked;
}

}  // namespace

std::string scratch_folder() {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);  // $TMPDIR, if that is a folder
  return ((error ? fs::path("/tmp") : base) / fmt::format("lockstep-fuzz-{}", getuid())).string();
}

std::string write_finding(const std::string& folder, const std::string& kind,
                          const std::vector<std::string>& head, const std::string& text) {
  make_folder(folder);
  const std::string name =
      fmt::format("{}-{:016x}.toml", file_name_of(kind), XXH3_64bits(text.data(), text.size()));
  const std::string path = (fs::path(folder) / name).string();
  if (fs::exists(path)) return path;
  ResultFile file(path);
  for (const std::string& line : head) file.out() << "# " << line << '\n';
  file.out() << text;
  file.commit();
  return path;
}

std::vector<Leftover> leftovers(const std::string& folder) {
  std::vector<Leftover> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().rfind(kRunningPrefix, 0) != 0) continue;
    if (is_in_use(entry.path())) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (text.empty()) {
      fs::remove(entry.path(), error);
    } else {
      found.push_back({entry.path().string(), text});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Leftover& a, const Leftover& b) { return a.path < b.path; });
  return found;
}

RunningInputs::~RunningInputs() {
  for (std::size_t slot = 0; slot < fds_.size(); ++slot) {
    if (fds_[slot] < 0) continue;
    unlink(paths_[slot].c_str());
    close(fds_[slot]);
  }
}

void RunningInputs::begins(std::int64_t slot, const CaseText& text) {
  const auto at = static_cast<std::size_t>(slot);
  if (fds_.size() <= at) {
    fds_.resize(at + 1, -1);
    paths_.resize(at + 1);
  }
  if (fds_[at] < 0) {
    make_folder(folder_);
    paths_[at] =
        (fs::path(folder_) / fmt::format("{}{}-{}", kRunningPrefix, getpid(), slot)).string();
    fds_[at] = open(paths_[at].c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    LOCKSTEP_USAGE(fds_[at] >= 0, "cannot write '{}': {}", paths_[at], std::strerror(errno));
    struct flock lock = whole_file();
    fcntl(fds_[at], F_SETLK, &lock);
  }
  // In this order: what lies there is nothing or the whole text of one case.
  const bool written =
      ftruncate(fds_[at], 0) == 0 && pwrite(fds_[at], text.text.data(), text.text.size(), 0) ==
                                         static_cast<ssize_t>(text.text.size());
  LOCKSTEP_USAGE(written, "cannot write '{}': {}", paths_[at], std::strerror(errno));
}

}  // namespace lockstep::harness::fuzz
