// SPDX-License-Identifier: Apache-2.0
// A store of files that appear whole or not at all.
//
// A file is written under a temporary name and then linked to its final one: link() fails if the
// name is taken, so of several ranks with one number exactly one gets it. Gloo's own FileStore is
// not used since it checks before it renames, and its get() waits 30 s whatever it was told.
#include "core/rendezvous_directory.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/launch_error.h"

namespace lockstep {
namespace {

constexpr char kTokenName[] = "token";

std::string error_text(int error) { return std::generic_category().message(error); }

template <class... Args>
void demand(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) {
    throw LaunchError("store_unusable", fmt::format(text, std::forward<Args>(args)...));
  }
}

class DirectoryStore final : public RendezvousStore {
 public:
  explicit DirectoryStore(std::string path) : path_(std::move(path)) {}

  bool publish(const std::string& name, const std::string& content) override {
    std::string temporary = path_ + "/.new.XXXXXX";
    const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
    demand(descriptor >= 0, "cannot write into {}: {}", describe(), error_text(errno));
    std::size_t written = 0;
    int error = 0;
    while (written < content.size() && error == 0) {
      const ssize_t count = ::write(descriptor, content.data() + written, content.size() - written);
      if (count >= 0) {
        written += static_cast<std::size_t>(count);
      } else if (errno != EINTR) {
        error = errno;
      }
    }
    ::close(descriptor);
    if (error == 0 && ::link(temporary.c_str(), (path_ + "/" + name).c_str()) != 0) {
      error = errno;
    }
    ::unlink(temporary.c_str());
    demand(error == 0 || error == EEXIST, "cannot write {} into {}: {}", name, describe(),
           error_text(error));
    return error == 0;
  }

  std::optional<std::string> read(const std::string& name) override {
    std::ifstream file(path_ + "/" + name, std::ios::binary);
    if (!file) {
      return std::nullopt;
    }
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::vector<std::string> list() override {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator entry(path_, error), end;
    for (; !error && entry != end; entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    demand(!error, "{}: {}", describe(), error.message());
    return names;
  }

  std::string describe() const override { return "rendezvous directory " + path_; }

 private:
  std::string path_;
};

class SteadyClock final : public RendezvousClock {
 public:
  std::chrono::nanoseconds now() const override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  void sleep(std::chrono::nanoseconds duration) override { std::this_thread::sleep_for(duration); }
};

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
  LOCKSTEP_CHECK(count == static_cast<ssize_t>(bytes.size()), "no random bytes: {}",
                 error_text(errno));
  std::string token;
  for (const unsigned char byte : bytes) {
    token += fmt::format("{:02x}", byte);
  }
  return token;
}

}  // namespace

RendezvousClock& steady_clock() {
  static SteadyClock clock;
  return clock;
}

RendezvousDirectory::RendezvousDirectory(std::string path, std::string token)
    : path_(std::move(path)), token_(std::move(token)), owner_pid_(::getpid()) {}

RendezvousDirectory RendezvousDirectory::create(const std::string& parent) {
  std::string base = parent;
  if (base.empty()) {
    const char* temporary = std::getenv("TMPDIR");
    base = temporary != nullptr && *temporary != '\0' ? temporary : "/tmp";
  }
  std::string path = base + "/lockstep.XXXXXX";
  // mkdtemp makes it with mode 0700, less what the umask takes away.
  LOCKSTEP_USAGE(::mkdtemp(path.data()) != nullptr, "cannot make a rendezvous directory in {}: {}",
                 base, error_text(errno));
  RendezvousDirectory directory(path, random_token());
  LOCKSTEP_CHECK(DirectoryStore(path).publish(kTokenName, directory.token()), "{} is not new",
                 path);
  return directory;
}

RendezvousDirectory RendezvousDirectory::adopt(std::string path, std::string token) {
  check_rendezvous_directory(path);
  return RendezvousDirectory(std::move(path), std::move(token));
}

RendezvousDirectory::~RendezvousDirectory() { remove(); }

RendezvousDirectory::RendezvousDirectory(RendezvousDirectory&& other) noexcept
    : path_(other.path_), token_(other.token_), owner_pid_(std::exchange(other.owner_pid_, -1)) {}

RendezvousDirectory& RendezvousDirectory::operator=(RendezvousDirectory&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = other.path_;
    token_ = other.token_;
    owner_pid_ = std::exchange(other.owner_pid_, -1);
  }
  return *this;
}

void RendezvousDirectory::remove() noexcept {
  if (owner_pid_ == ::getpid()) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  owner_pid_ = -1;
}

void check_rendezvous_directory(const std::string& path) {
  struct stat status {};
  const int error = ::lstat(path.c_str(), &status) == 0 ? 0 : errno;
  demand(error == 0, "rendezvous directory {}: {}", path, error_text(error));
  demand(S_ISDIR(status.st_mode), "rendezvous directory {} is not a directory", path);
  demand(status.st_uid == ::geteuid(), "rendezvous directory {} belongs to user {}, not to user {}",
         path, status.st_uid, ::geteuid());
  const auto mode = status.st_mode & 07777U;
  demand((mode & 077U) == 0,
         "rendezvous directory {} has mode {:04o}; others must have no access: chmod 700", path,
         mode);
}

std::unique_ptr<RendezvousStore> open_rendezvous_directory(const std::string& path) {
  check_rendezvous_directory(path);
  return std::make_unique<DirectoryStore>(path);
}

}  // namespace lockstep
