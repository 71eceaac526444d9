// SPDX-License-Identifier: Apache-2.0
// Runs another program to its end and keeps what it says.
#include "tests/support/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <stdexcept>

namespace lockstep::test {

namespace {

struct Pipe {
  Pipe() {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
  std::array<int, 2> ends{};
};

/// Reads both pipes until both have ended, so that neither can fill up.
void drain(int out_fd, int err_fd, ProgramResult& result) {
  std::array<pollfd, 2> polled = {{{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}}};
  const std::array<std::string*, 2> texts = {&result.out, &result.err};
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
      throw std::runtime_error("poll failed");
    }
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      std::array<char, 4096> chunk;
      const ssize_t num_bytes = read(polled[i].fd, chunk.data(), chunk.size());
      if (num_bytes > 0) {
        texts[i]->append(chunk.data(), static_cast<std::size_t>(num_bytes));
      } else {
        close(polled[i].fd);
        polled[i].fd = -1;
      }
    }
  }
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  Pipe out, err;
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("no process");
  if (pid == 0) {
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(out.ends[1], STDOUT_FILENO);
    dup2(err.ends[1], STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(out.ends[1]);
  close(err.ends[1]);
  ProgramResult result;
  drain(out.ends[0], err.ends[0], result);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace lockstep::test
