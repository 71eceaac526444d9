// SPDX-License-Identifier: Apache-2.0
// The network interface that Gloo's connections use.
#pragma once

#include <memory>
#include <string>

namespace lockstep {

/// At most one of the two; neither: 127.0.0.1.
struct GlooDeviceOptions {
  std::string interface;  ///< exact name, e.g. "eth0"
  std::string host;       ///< name or address of this machine
};

/// One listening address and one event thread, for any number of communicators of this process.
///
/// Threads: may be used by several threads at once. Lives as long as the last communicator on it.
class GlooDevice {
 public:
  /// Errors: UsageError naming the interfaces there are, if the one asked for is none of them.
  static std::shared_ptr<GlooDevice> open(const GlooDeviceOptions& options = {});

  /// Numeric address its communicators listen on.
  const std::string& address() const { return address_; }

  /// The gloo::transport::Device.
  const std::shared_ptr<void>& handle() const { return handle_; }

 private:
  GlooDevice(std::string address, std::shared_ptr<void> handle);

  std::string address_;
  std::shared_ptr<void> handle_;
};

}  // namespace lockstep
