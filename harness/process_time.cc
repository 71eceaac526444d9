// SPDX-License-Identifier: Apache-2.0
// Processor time and states of another process, as Linux tells them.
#include "harness/process_time.h"

#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace lockstep::harness {

double processor_seconds(pid_t process) {
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &used) != 0) {
    return 0.0;
  }
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

bool wants_processor(pid_t process) {
  std::error_code error;
  for (std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", process), error), end;
       !error && task != end; task.increment(error)) {
    std::ifstream file(task->path() / "stat");
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    // "NUMBER (NAME) STATE ...", where the name may hold anything.
    const std::size_t state = stat.rfind(") ");
    if (state != std::string::npos && (stat[state + 2] == 'R' || stat[state + 2] == 'D')) {
      return true;
    }
  }
  return false;
}

}  // namespace lockstep::harness
