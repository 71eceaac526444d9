// SPDX-License-Identifier: Apache-2.0
// A child process that judges cases, seen from its parent; and the child's own loop.
#include "harness/suite_worker.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "core/check.h"
#include "harness/process_time.h"
#include "harness/report/case_json.h"
#include "harness/report/printable.h"
#include "harness/scenario.h"
#include "harness/wall_clock.h"

namespace lockstep::harness {

namespace {

/// Blocks until all is sent; false if the other end is gone.
bool send_all(int fd, const void* bytes, std::size_t num_bytes) {
  const char* next = static_cast<const char*>(bytes);
  while (num_bytes > 0) {
    const ssize_t sent = send(fd, next, num_bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    next += sent;
    num_bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int fd, void* bytes, std::size_t num_bytes) {
  char* next = static_cast<char*>(bytes);
  while (num_bytes > 0) {
    const ssize_t received = recv(fd, next, num_bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    next += received;
    num_bytes -= static_cast<std::size_t>(received);
  }
  return true;
}

using Lengths = std::array<std::uint64_t, 3>;

bool send_case(int fd, const CaseText& sent) {
  const Lengths lengths = {sent.file.size(), sent.name.size(), sent.text.size()};
  std::string bytes(sizeof lengths, '\0');
  std::memcpy(bytes.data(), lengths.data(), sizeof lengths);
  bytes += sent.file + sent.name + sent.text;
  return send_all(fd, bytes.data(), bytes.size());
}

/// Blocks until there is one; false once the connection is closed.
bool receive_case(int fd, CaseText& received) {
  Lengths lengths{};
  if (!receive_all(fd, lengths.data(), sizeof lengths)) return false;
  std::string bytes(lengths[0] + lengths[1] + lengths[2], '\0');
  if (!receive_all(fd, bytes.data(), bytes.size())) return false;
  received = {bytes.substr(0, lengths[0]), bytes.substr(lengths[0], lengths[1]),
              bytes.substr(lengths[0] + lengths[1])};
  return true;
}

CaseResult judge_text(const CaseText& received, const SuiteWorkerContext& context) {
  NamedCase named{received.file, received.name, {}};
  return judge_one(named, [&](const NamedCase&) {
    named.value = std::move(parse_scenario_text(received.text, received.file).at(0).value);
    return context.judge(named);
  });
}

/// The child's work; returns when the parent closes the connection.
void serve(const SuiteWorkerContext& context, int fd) {
  CaseText received;
  while (receive_case(fd, received)) {
    const std::string text = case_result_to_json(judge_text(received, context));
    const auto num_bytes = static_cast<std::uint64_t>(text.size());
    if (!send_all(fd, &num_bytes, sizeof num_bytes)) return;
    if (!send_all(fd, text.data(), text.size())) return;
  }
}

constexpr std::array<int, 4> kHandledByParent = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};

/// Until the child has put off its parent's handlers, signals wait: a child that is told to end
/// before that would tell its parent, whose pipe for signals it shares.
sigset_t hold_signals() {
  sigset_t held, before;
  sigemptyset(&held);
  for (const int signal : kHandledByParent) sigaddset(&held, signal);
  pthread_sigmask(SIG_BLOCK, &held, &before);
  return before;
}

void release_signals(const sigset_t& before) { pthread_sigmask(SIG_SETMASK, &before, nullptr); }

[[noreturn]] void be_child(const SuiteWorkerContext& context, int fd, pid_t parent,
                           const sigset_t& signals_before) noexcept {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(0);  // The parent died before the line above.
  // Here these have their usual effect.
  for (const int signal : kHandledByParent) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {
      std::signal(signal, SIG_DFL);
    }
  }
  release_signals(signals_before);
  try {
    if (context.process_start) context.process_start();
    serve(context, fd);
    if (context.process_end) context.process_end();
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: a judging process ends: {}\n", error.what());
    std::fflush(nullptr);
    _exit(3);
  }
  std::fflush(nullptr);
  // Without destructors and exit handlers: those of LibTorch belong to the parent.
  _exit(0);
}

}  // namespace

SuiteWorker::SuiteWorker(const SuiteWorkerContext& context, const std::vector<int>& parent_fds) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(fmt::format("no socket for a judging process: {}", std::strerror(errno)));
  }
  const pid_t parent = getpid();
  std::fflush(nullptr);  // Else both processes would write what is buffered.
  const sigset_t signals_before = hold_signals();
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[0]);
    for (const int fd : parent_fds) close(fd);
    be_child(context, ends[1], parent, signals_before);
  }
  const int error = errno;
  release_signals(signals_before);
  close(ends[1]);
  fd_ = ends[0];
  if (pid_ < 0) {
    close(fd_);
    throw Error(fmt::format("cannot start a judging process: {}", std::strerror(error)));
  }
  setpgid(pid_, pid_);  // Also here, so that it holds from now on whichever process runs first.
}

SuiteWorker::~SuiteWorker() {
  if (pid_ > 0) {
    ask_to_end();
    int signal = 0;
    constexpr double kGrace_s = 2.0;
    reap(kGrace_s, signal);
  }
  close(fd_);
}

bool SuiteWorker::hand_out(std::int64_t index, const CaseText& text, double limit_s) {
  used_before_s_ = processor_seconds(pid_);
  const bool sent = send_case(fd_, text);
  // A child that did not live to see its first case has lost it, or starting would never end.
  if (!sent && has_answered_) return false;
  in_flight_ = index;
  limit_s_ = limit_s;
  handed_out_at_s_ = looked_at_s_ = wall_seconds();
  used_at_look_s_ = 0.0;
  deadline_s_ = handed_out_at_s_ + limit_s;
  return true;
}

bool SuiteWorker::has_had_its_time() {
  constexpr double kStandsStill = 0.005;  // of a processor
  constexpr double kPostponedMax = 20.0, kPause_s = 0.05;
  const double now_s = wall_seconds();
  if (!in_flight_ || now_s < deadline_s_) {
    return false;
  }
  const double used_s = processor_seconds(pid_) - used_before_s_;
  const bool stands_still = used_s - used_at_look_s_ < kStandsStill * (now_s - looked_at_s_);
  const double last_s = handed_out_at_s_ + kPostponedMax * limit_s_;
  if (used_s >= limit_s_ || stands_still || now_s >= last_s) {
    return true;
  }
  used_at_look_s_ = used_s;
  looked_at_s_ = now_s;
  deadline_s_ = std::min(now_s + std::max(limit_s_ - used_s, kPause_s), last_s);
  return false;
}

std::optional<CaseResult> SuiteWorker::receive() {
  std::array<char, 1 << 16> chunk;
  while (!disconnected_) {
    const ssize_t num_bytes = recv(fd_, chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (num_bytes < 0 && errno == EINTR) continue;
    if (num_bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (num_bytes <= 0) {
      disconnected_ = true;
      break;
    }
    received_.append(chunk.data(), static_cast<std::size_t>(num_bytes));
  }
  std::uint64_t num_bytes = 0;
  if (received_.size() < sizeof num_bytes) return std::nullopt;
  std::memcpy(&num_bytes, received_.data(), sizeof num_bytes);
  if (received_.size() - sizeof num_bytes < num_bytes) return std::nullopt;
  const std::string text = received_.substr(sizeof num_bytes, num_bytes);
  received_.erase(0, sizeof num_bytes + num_bytes);
  in_flight_.reset();
  has_answered_ = true;
  return case_result_from_json(text);
}

bool SuiteWorker::dead() const {
  siginfo_t info{};
  const int rc = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  return rc == 0 && info.si_pid == pid_;
}

void SuiteWorker::ask_to_end() {
  if (in_flight_) {
    kill(-pid_, SIGTERM);
  } else {
    shutdown(fd_, SHUT_RDWR);
  }
}

std::string SuiteWorker::reap(double grace_s, int& signal) {
  const double end_s = wall_seconds() + grace_s;
  constexpr int kPause_ms = 2;
  while (!dead() && wall_seconds() < end_s) poll(nullptr, 0, kPause_ms);
  // While the child is a zombie its number names no other group.
  kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return signal != 0 ? signal_name(signal) : fmt::format("exit status {}", WEXITSTATUS(status));
}

}  // namespace lockstep::harness
