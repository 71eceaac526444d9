// SPDX-License-Identifier: Apache-2.0
// What a campaign keeps on disk: findings, and the inputs of cases in progress.
#include "harness/fuzz/campaign/corpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
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

/// A new file that this process has locked, under a name that nobody has: process ids come again,
/// in containers always.
int make_running(const std::string& folder, std::int64_t slot, std::string& path) {
  for (int i = 0;; ++i) {
    const std::string name = fmt::format("{}{}-{}", kRunningPrefix, getpid(), slot);
    path = (fs::path(folder) / (i == 0 ? name : fmt::format("{}-{}", name, i))).string();
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) continue;
    LOCKSTEP_USAGE(fd >= 0, "cannot write '{}': {}", path, std::strerror(errno));
    struct flock lock = whole_file();
    fcntl(fd, F_SETLKW, &lock);
    struct stat info {};
    if (fstat(fd, &info) == 0 && info.st_nlink > 0) return fd;
    close(fd);  // Before it was locked it was taken for left behind, and removed.
  }
}

/// The text of a file of a campaign that runs no more; nothing where it runs, or for what is no
/// such file. An empty one is removed.
std::optional<std::string> read_leftover(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;  // Not ours to judge.
  std::optional<std::string> text;
  struct flock lock = whole_file();
  if (fcntl(fd, F_SETLK, &lock) == 0) {
    std::ifstream file(path, std::ios::binary);
    text.emplace(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (text->empty()) unlink(path.c_str());
  }
  close(fd);
  return text;
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
    std::optional<std::string> text = read_leftover(entry.path());
    if (text && !text->empty()) found.push_back({entry.path().string(), *std::move(text)});
  }
  std::sort(found.begin(), found.end(),
            [](const Leftover& a, const Leftover& b) { return a.path < b.path; });
  return found;
}

RunningInputs::~RunningInputs() {
  for (std::size_t slot = 0; slot < fds_.size(); ++slot) ends(static_cast<std::int64_t>(slot));
}

void RunningInputs::begins(std::int64_t slot, const CaseText& text) {
  const auto at = static_cast<std::size_t>(slot);
  if (fds_.size() <= at) {
    fds_.resize(at + 1, -1);
    paths_.resize(at + 1);
  }
  if (fds_[at] < 0) {
    make_folder(folder_);
    fds_[at] = make_running(folder_, slot, paths_[at]);
  }
  errno = 0;
  // In this order: what lies there is nothing or the whole text of one case.
  const bool written =
      ftruncate(fds_[at], 0) == 0 && pwrite(fds_[at], text.text.data(), text.text.size(), 0) ==
                                         static_cast<ssize_t>(text.text.size());
  LOCKSTEP_USAGE(written, "cannot write '{}': {}", paths_[at],
                 errno != 0 ? std::strerror(errno) : "no space is left");
}

void RunningInputs::ends(std::int64_t slot) {
  const auto at = static_cast<std::size_t>(slot);
  if (fds_.size() <= at || fds_[at] < 0) return;
  unlink(paths_[at].c_str());
  close(fds_[at]);
  fds_[at] = -1;
}

}  // namespace lockstep::harness::fuzz
