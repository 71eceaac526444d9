// SPDX-License-Identifier: Apache-2.0
// Signals that arrive where a loop waits for other things.
#include "harness/signals_as_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace lockstep::harness {

namespace {

constexpr std::array<int, 4> kSignals = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};

// Where the handler writes; a handler can reach nothing else. -1: nobody listens.
std::atomic<int> signal_pipe_fd{-1};

extern "C" void write_signal(int signal) {
  const int saved_errno = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe already holds enough to wake the reader.
  [[maybe_unused]] const ssize_t written = write(signal_pipe_fd.load(), &byte, 1);
  errno = saved_errno;
}

}  // namespace

SignalsAsBytes::SignalsAsBytes() {
  if (pipe2(fds_.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw Error(fmt::format("no pipe for signals: {}", std::strerror(errno)));
  }
  old_pipe_ = signal_pipe_fd.exchange(fds_[1]);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    sigaction(kSignals[i], nullptr, &old_actions_[i]);
    action.sa_handler = write_signal;
    action.sa_flags = SA_RESTART;
    // What the caller ignores (nohup does) stays ignored; but a child that ends leaves no status
    // behind where SIGCHLD is ignored.
    if (old_actions_[i].sa_handler != SIG_IGN || kSignals[i] == SIGCHLD) {
      sigaction(kSignals[i], &action, nullptr);
    }
  }
}

SignalsAsBytes::~SignalsAsBytes() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &old_actions_[i], nullptr);
  }
  signal_pipe_fd = old_pipe_;
  close(fds_[0]);
  close(fds_[1]);
}

int SignalsAsBytes::take() {
  int ending = 0;
  unsigned char byte = 0;
  while (read(fds_[0], &byte, 1) == 1) {
    if (byte != SIGCHLD && ending == 0) ending = byte;
  }
  return ending;
}

}  // namespace lockstep::harness
