// SPDX-License-Identifier: Apache-2.0
// What a rank is lent by the world it runs in, simulated or real.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/communicator.h"
#include "core/observer.h"
#include "harness/subject.h"

namespace lockstep::harness {

struct RankServices {
  Communicator* communicator = nullptr;
  Observer* observer = nullptr;                ///< may be null
  std::function<void(std::int64_t ns)> sleep;  ///< virtual or real
  std::function<std::int64_t()> now_ns;        ///< virtual time; empty where there is none
  /// What "exit", "crash" and "stop" do to the rank's process, real or simulated. Only "stop"
  /// returns: when the process goes on.
  std::function<void(const std::string& kind)> fail_process;
  const Subject* subject = nullptr;  ///< somebody's own parts; may be null
};

}  // namespace lockstep::harness
