// SPDX-License-Identifier: Apache-2.0
// Starting and ending worker processes.
#include "harness/execute/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "core/check.h"

namespace lockstep::harness {
namespace {

constexpr int kCannotExecute = 127;

/// The parent's environment, with one computing thread: as in every other run of a case.
std::vector<std::string> worker_environment() {
  std::vector<std::string> variables;
  const std::string threads = "OMP_NUM_THREADS=";
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, threads.c_str(), threads.size()) != 0) {
      variables.emplace_back(*entry);
    }
  }
  variables.push_back(threads + "1");
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// The child's side of fork. The parent may have other threads, so everything here is
/// async-signal-safe.
[[noreturn]] void become_worker(int socket_fd, pid_t parent, char* const* arguments,
                                char* const* environment) {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    ::sigaction(number, &ignore, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);
  // The end of the socket tells a worker that its parent is gone, but a stopped worker would never
  // read it. SIGCONT means nothing to one that runs.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  if (::getppid() != parent) {
    ::_exit(0);
  }
  ::fcntl(socket_fd, F_SETFD, 0);
  ::execve(arguments[0], arguments, environment);
  ::_exit(kCannotExecute);
}

}  // namespace

WorkerProcess::WorkerProcess(const WorkerCommand& command) {
  int fds[2];
  LOCKSTEP_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "{}",
                 std::strerror(errno));
  channel_ = std::make_unique<Channel>(fds[0]);
  // A worker that takes nothing for a second, with an empty buffer before, is not going to.
  const timeval send_timeout{1, 0};
  ::setsockopt(fds[0], SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof(send_timeout));

  std::vector<std::string> words = {command.binary,         "worker",      "--socket",
                                    std::to_string(fds[1]), "--directory", command.directory};
  std::vector<std::string> variables = worker_environment();
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> environment = pointers_to(variables);
  owner_ = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    become_worker(fds[1], owner_, arguments.data(), environment.data());
  }
  const int fork_errno = errno;
  ::close(fds[1]);
  LOCKSTEP_CHECK(pid_ > 0, "no further process: {}", std::strerror(fork_errno));
}

WorkerProcess::~WorkerProcess() { end(); }

bool WorkerProcess::is_stale() { return !channel_->pump() || channel_->next().has_value(); }

ProcessEnd WorkerProcess::end() {
  if (!reaped_ && ::getpid() == owner_) {
    // A process that is on its way out keeps the status it has.
    ::kill(pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    reaped_ = true;
    process_end_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    process_end_.status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }
  return process_end_;
}

}  // namespace lockstep::harness
