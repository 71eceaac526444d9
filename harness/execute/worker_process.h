// SPDX-License-Identifier: Apache-2.0
// One worker process as its parent holds it: started, spoken to, ended, reaped.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "harness/execute/worker_protocol.h"

namespace lockstep::harness {

struct WorkerCommand {
  std::string binary;     ///< executed as: binary worker --socket FD --directory DIRECTORY
  std::string directory;  ///< the worker removes it when its parent is gone
};

/// How a process ended.
struct ProcessEnd {
  int signal = 0;  ///< 0: it exited by itself
  int status = 0;  ///< of its exit
};

/// A child process with a channel. The destructor kills and reaps it.
///
/// Signals: the worker leads a process group of its own and ignores SIGINT, SIGTERM, SIGHUP and
///          SIGQUIT: what is sent to its parent, or by a terminal to the whole job, must not end
///          it, since it has to clean up once its parent is gone. It learns of that by the end of
///          the channel; should it be stopped then, the death of the thread that started it wakes
///          it.
/// Forks:   in a forked copy of the parent the destructor only closes the channel.
class WorkerProcess {
 public:
  /// Errors: InvariantError if no process can be made. A binary that cannot be executed shows as a
  ///         worker that exits with status 127.
  explicit WorkerProcess(const WorkerCommand& command);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  Channel& channel() { return *channel_; }

  /// True if the process has gone, or said something out of turn, while nobody listened.
  bool is_stale();

  /// Sends SIGKILL and waits for the end. Of no effect on how a process ended that has gone
  /// already.
  ProcessEnd end();

 private:
  pid_t owner_ = -1;  ///< the process that started it
  pid_t pid_ = -1;
  bool reaped_ = false;
  ProcessEnd process_end_;
  std::unique_ptr<Channel> channel_;
};

}  // namespace lockstep::harness
