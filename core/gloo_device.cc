// SPDX-License-Identifier: Apache-2.0
// Chooses the address before Gloo sees it: Gloo takes a name it cannot resolve for granted.
#include "core/gloo_device.h"

#include <fmt/ranges.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/gloo_signals.h"
#include "core/launch_error.h"

namespace lockstep {
namespace {

/// The first address of `name` that is one of this machine's.
ListenAddress address_of_host(const Host& host, const std::string& name) {
  const auto interfaces = host.interfaces();
  const std::vector<std::string> resolved = host.resolve(name);
  for (const std::string& address : resolved) {
    const auto own =
        std::find_if(interfaces.begin(), interfaces.end(),
                     [&](const NetworkInterface& entry) { return entry.address == address; });
    if (own != interfaces.end() || is_loopback(address)) {
      return {own != interfaces.end() ? own->name : "", address, 0};
    }
  }
  throw LaunchError(
      "no_such_interface",
      resolved.empty()
          ? fmt::format("host '{}' is not known; the interfaces of this machine are: {}", name,
                        describe(interfaces))
          : fmt::format("host '{}' ({}) is no address of this machine; its interfaces are: {}",
                        name, fmt::join(resolved, ", "), describe(interfaces)));
}

}  // namespace

GlooDevice::GlooDevice(ListenAddress listen, std::shared_ptr<void> handle)
    : listen_(std::move(listen)), handle_(std::move(handle)) {}

std::shared_ptr<GlooDevice> GlooDevice::open(const GlooDeviceOptions& options) {
  LOCKSTEP_USAGE(options.interface.empty() || options.host.empty(),
                 "both an interface ('{}') and a host ('{}') are given; choose one",
                 options.interface, options.host);
  const ListenAddress listen =
      options.interface.empty()
          ? address_of_host(this_host(), options.host.empty() ? "127.0.0.1" : options.host)
          : choose_listen_address(this_host(), options.interface, options.port);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = listen.address;
  std::shared_ptr<gloo::transport::Device> device;
  try {
    const ScopedSignalBlock block;
    device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    throw UsageError(fmt::format("cannot listen on {}: {}", describe(listen), error.what()));
  }
  return std::shared_ptr<GlooDevice>(new GlooDevice(listen, std::move(device)));
}

}  // namespace lockstep
