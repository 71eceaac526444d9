// SPDX-License-Identifier: Apache-2.0
// Rendezvous by files that appear whole or not at all.
//
// A file is written under a temporary name and then linked to its final one: link() fails if the
// name is taken, so of several ranks with one number exactly one gets it. Gloo's own FileStore is
// not used since it checks before it renames, and its get() waits 30 s whatever it was told.
#include "core/rendezvous.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

constexpr char kTokenName[] = "token";
constexpr char kRecordFormat[] = "lockstep-rank-1";

std::string error_text(int error) { return std::generic_category().message(error); }

/// Sleeps between looks at the directory: short at first, since ranks usually come together.
class Pause {
 public:
  void operator()() {
    std::this_thread::sleep_for(next_);
    next_ = std::min<std::chrono::microseconds>(next_ * 2, std::chrono::milliseconds(5));
  }

 private:
  std::chrono::microseconds next_{100};
};

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Makes `directory/name` appear with `content`. False if the name is taken.
bool publish(const std::string& directory, const std::string& name, const std::string& content) {
  std::string temporary = directory + "/.new.XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  LOCKSTEP_USAGE(descriptor >= 0, "cannot write into rendezvous directory {}: {}", directory,
                 error_text(errno));
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
  if (error == 0 && ::link(temporary.c_str(), (directory + "/" + name).c_str()) != 0) {
    error = errno;
  }
  ::unlink(temporary.c_str());
  LOCKSTEP_USAGE(error == 0 || error == EEXIST, "cannot write {} into rendezvous directory {}: {}",
                 name, directory, error_text(error));
  return error == 0;
}

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

std::string host_name() {
  std::array<char, 256> name{};
  LOCKSTEP_CHECK(::gethostname(name.data(), name.size() - 1) == 0, "{}", error_text(errno));
  return name[0] != '\0' ? name.data() : "localhost";
}

std::string to_text(const PeerRecord& record) {
  return fmt::format("{} {} {} {} {} {}\n", kRecordFormat, record.rank, record.world_size,
                     record.pid, record.host, record.address);
}

std::optional<PeerRecord> parse_record(const std::string& text) {
  std::istringstream in(text);
  std::string format;
  PeerRecord record;
  in >> format >> record.rank >> record.world_size >> record.pid >> record.host >> record.address;
  if (!in || format != kRecordFormat) {
    return std::nullopt;
  }
  return record;
}

/// "process 123 on host a", and whether it still runs where that can be known.
std::string describe_process(const PeerRecord& record) {
  const bool gone = record.host == host_name() && ::kill(static_cast<pid_t>(record.pid), 0) != 0 &&
                    errno == ESRCH;
  return fmt::format("process {} on host {}{}", record.pid, record.host,
                     gone ? ", which no longer runs" : "");
}

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1";
}

bool is_group_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

}  // namespace

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
  LOCKSTEP_CHECK(publish(path, kTokenName, directory.token()), "{} is not new", path);
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
  LOCKSTEP_USAGE(::lstat(path.c_str(), &status) == 0, "rendezvous directory {}: {}", path,
                 error_text(errno));
  LOCKSTEP_USAGE(S_ISDIR(status.st_mode), "rendezvous directory {} is not a directory", path);
  LOCKSTEP_USAGE(status.st_uid == ::geteuid(),
                 "rendezvous directory {} belongs to user {}, not to user {}", path, status.st_uid,
                 ::geteuid());
  const auto mode = status.st_mode & 07777U;
  LOCKSTEP_USAGE((mode & 077U) == 0,
                 "rendezvous directory {} has mode {:04o}; others must have no access: chmod 700",
                 path, mode);
}

GroupRendezvous::GroupRendezvous(GroupRendezvousOptions options)
    : options_(std::move(options)), deadline_(std::chrono::steady_clock::now() + options_.timeout) {
  LOCKSTEP_USAGE(options_.world_size >= 1, "world size {} is below 1", options_.world_size);
  LOCKSTEP_USAGE(options_.rank >= 0 && options_.rank < options_.world_size,
                 "rank {} is outside 0..{} of world size {}", options_.rank,
                 options_.world_size - 1, options_.world_size);
  LOCKSTEP_USAGE(!options_.token.empty(), "rank {}: no run token", options_.rank);
  LOCKSTEP_USAGE(is_group_name(options_.group),
                 "group name '{}' holds other than letters, digits, '_' and '-'", options_.group);
  LOCKSTEP_USAGE(options_.timeout.count() > 0, "rendezvous timeout of {} ms",
                 options_.timeout.count());
  check_rendezvous_directory(options_.directory);
}

std::string GroupRendezvous::path_of(const std::string& name) const {
  return options_.directory + "/" + name;
}

std::chrono::milliseconds GroupRendezvous::remaining() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline_ - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

void GroupRendezvous::claim_token() {
  auto owner = read_file(path_of(kTokenName));
  if (!owner && !publish(options_.directory, kTokenName, options_.token)) {
    owner = read_file(path_of(kTokenName));
  }
  LOCKSTEP_USAGE(!owner || *owner == options_.token,
                 "rank {}: rendezvous directory {} belongs to run {}, this is run {}: it is stale "
                 "or another job's; give each run a directory of its own",
                 options_.rank, options_.directory, *owner, options_.token);
}

void GroupRendezvous::refuse(const std::string& message) {
  publish(options_.directory,
          fmt::format("{}.refused.{}.{}", options_.group, options_.rank, ::getpid()), message);
  throw UsageError(message);
}

void GroupRendezvous::register_self() {
  PeerRecord self;
  self.rank = options_.rank;
  self.world_size = options_.world_size;
  self.pid = ::getpid();
  self.host = host_name();
  self.address = options_.address.empty() ? "-" : options_.address;
  const std::string name = fmt::format("{}.rank.{}", options_.group, options_.rank);
  if (!publish(options_.directory, name, to_text(self))) {
    const auto taken = parse_record(read_file(path_of(name)).value_or(""));
    refuse(fmt::format("rank {} of group '{}' in {} is taken by {}; process {} wants it too",
                       options_.rank, options_.group, options_.directory,
                       taken ? describe_process(*taken) : "an unreadable record", self.pid));
  }
}

std::vector<PeerRecord> GroupRendezvous::scan() {
  const std::string rank_prefix = options_.group + ".rank.";
  const std::string refused_prefix = options_.group + ".refused.";
  std::vector<PeerRecord> found;
  std::optional<std::string> refusal;
  std::error_code error;
  std::filesystem::directory_iterator entry(options_.directory, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind(refused_prefix, 0) == 0) {
      refusal = read_file(entry->path().string()).value_or(name);
    }
    if (name.rfind(rank_prefix, 0) == 0) {
      const auto record = parse_record(read_file(entry->path().string()).value_or(""));
      LOCKSTEP_USAGE(record, "rank {}: cannot read {}", options_.rank, entry->path().string());
      found.push_back(*record);
    }
  }
  LOCKSTEP_USAGE(!error, "rank {}: rendezvous directory {}: {}", options_.rank, options_.directory,
                 error.message());
  std::sort(found.begin(), found.end(),
            [](const PeerRecord& a, const PeerRecord& b) { return a.rank < b.rank; });
  for (const PeerRecord& record : found) {
    if (record.world_size != options_.world_size) {
      refuse(fmt::format("world sizes differ: rank {} was told {}, rank {} ({}) was told {}",
                         options_.rank, options_.world_size, record.rank, describe_process(record),
                         record.world_size));
    }
  }
  // A complete group has nothing to fear from a stranger that was refused.
  LOCKSTEP_USAGE(!refusal || static_cast<std::int64_t>(found.size()) == options_.world_size,
                 "rank {}: the group cannot form: {}", options_.rank, *refusal);
  return found;
}

std::vector<PeerRecord> GroupRendezvous::meet() {
  claim_token();
  register_self();
  std::vector<PeerRecord> found = scan();
  for (Pause pause; static_cast<std::int64_t>(found.size()) < options_.world_size; found = scan()) {
    if (remaining().count() == 0) {
      std::set<std::int64_t> missing;
      for (std::int64_t rank = 0; rank < options_.world_size; ++rank) {
        missing.insert(rank);
      }
      for (const PeerRecord& record : found) {
        missing.erase(record.rank);
      }
      throw TimedOut(
          fmt::format("rank {}: after {} ms only {} of {} ranks have come to {}; missing: {}",
                      options_.rank, options_.timeout.count(), found.size(), options_.world_size,
                      options_.directory, fmt::join(missing, ", ")));
    }
    pause();
  }
  std::set<std::string> hosts;
  for (const PeerRecord& record : found) {
    hosts.insert(record.host);
  }
  if (hosts.size() > 1 && is_loopback(options_.address)) {
    refuse(
        fmt::format("rank {} listens on {}, which ranks on other machines ({}) cannot reach; "
                    "choose an interface",
                    options_.rank, options_.address, fmt::join(hosts, ", ")));
  }
  return found;
}

void GroupRendezvous::set(const std::string& key, const std::vector<char>& value) {
  LOCKSTEP_USAGE(publish(options_.directory, fmt::format("{}.key.{}", options_.group, key),
                         std::string(value.begin(), value.end())),
                 "rank {}: key {} of group '{}' is taken", options_.rank, key, options_.group);
}

std::vector<char> GroupRendezvous::get(const std::string& key) {
  const std::string path = path_of(fmt::format("{}.key.{}", options_.group, key));
  for (Pause pause;; pause()) {
    if (const auto value = read_file(path)) {
      return {value->begin(), value->end()};
    }
    if (remaining().count() == 0) {
      throw TimedOut(fmt::format("rank {}: no peer has published '{}' in {} within {} ms",
                                 options_.rank, key, options_.directory, options_.timeout.count()));
    }
  }
}

}  // namespace lockstep
