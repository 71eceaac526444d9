// SPDX-License-Identifier: Apache-2.0
// Keeping worker processes, and the directory they meet in.
#include "harness/execute/worker_pool.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/check.h"

namespace lockstep::harness {
namespace {

/// A name that nobody else uses, and that nobody can guess and occupy.
std::string new_directory_name() {
  std::uint64_t number = 0;
  LOCKSTEP_CHECK(::getentropy(&number, sizeof(number)) == 0, "{}", std::strerror(errno));
  const char* parent = std::getenv("TMPDIR");
  return fmt::format("{}/lockstep-workers-{}-{:016x}",
                     parent != nullptr && *parent != '\0' ? parent : "/tmp", ::getpid(), number);
}

}  // namespace

WorkerPool::WorkerPool(const std::string& binary) : command_{binary, {}} {}

WorkerPool::~WorkerPool() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    drop(i);
  }
}

void WorkerPool::drop(std::size_t index) {
  workers_[index].reset();
  if (has_directory_ && pids().empty() && ::getpid() == owner_) {
    std::error_code error;
    std::filesystem::remove_all(command_.directory, error);
    has_directory_ = false;
  }
}

void WorkerPool::prepare(std::int64_t num_workers) {
  if (owner_ < 0) {
    owner_ = ::getpid();
    command_.directory = new_directory_name();
  }
  LOCKSTEP_CHECK(owner_ == ::getpid(), "the workers belong to process {}", owner_);
  const auto wanted = static_cast<std::size_t>(num_workers);
  workers_.resize(std::max(workers_.size(), wanted));
  for (std::size_t i = 0; i < wanted; ++i) {
    if (workers_[i] != nullptr && workers_[i]->is_stale()) {
      drop(i);
    }
    if (workers_[i] == nullptr) {
      workers_[i] = std::make_unique<WorkerProcess>(command_);
    }
  }
  if (!has_directory_) {
    // Only now: from here on somebody is there to remove it, should this process die.
    LOCKSTEP_CHECK(::mkdir(command_.directory.c_str(), S_IRWXU) == 0, "cannot make {}: {}",
                   command_.directory, std::strerror(errno));
    has_directory_ = true;
  }
}

WorkerProcess& WorkerPool::worker(std::int64_t index) {
  return *workers_.at(static_cast<std::size_t>(index));
}

ProcessEnd WorkerPool::discard(std::int64_t index) {
  const ProcessEnd end = worker(index).end();
  drop(static_cast<std::size_t>(index));
  return end;
}

std::vector<pid_t> WorkerPool::pids() const {
  std::vector<pid_t> pids;
  for (const auto& worker : workers_) {
    if (worker != nullptr) {
      pids.push_back(worker->pid());
    }
  }
  return pids;
}

}  // namespace lockstep::harness
