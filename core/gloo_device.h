// SPDX-License-Identifier: Apache-2.0
// The network interface that Gloo's connections use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/host.h"

namespace lockstep {

/// At most one of interface and host; neither: 127.0.0.1.
struct GlooDeviceOptions {
  std::string interface;  ///< "eth0", "^lo" or "10.0.0.1": see choose_listen_address
  std::string host;       ///< name or address of this machine
  /// One that the program listens on itself and that must be free, with an interface; 0: none.
  /// Gloo's own ports are chosen by the system.
  std::int64_t port = 0;
};

/// One listening address and one event thread, for any number of communicators of this process.
///
/// Threads: may be used by several threads at once. Lives as long as the last communicator on it.
class GlooDevice {
 public:
  /// Its connections listen on ports that the system chooses, so that none can be taken.
  /// Errors: LaunchError `no_such_interface` with those there are, if what is asked for is none.
  static std::shared_ptr<GlooDevice> open(const GlooDeviceOptions& options = {});

  /// Numeric address its communicators listen on, and whose it is.
  const std::string& address() const { return listen_.address; }
  const ListenAddress& listen_address() const { return listen_; }

  /// The gloo::transport::Device.
  const std::shared_ptr<void>& handle() const { return handle_; }

 private:
  GlooDevice(ListenAddress listen, std::shared_ptr<void> handle);

  ListenAddress listen_;
  std::shared_ptr<void> handle_;
};

}  // namespace lockstep
