// SPDX-License-Identifier: Apache-2.0
// Chooses the address before Gloo sees it: Gloo takes a name it cannot resolve for granted.
#include "core/gloo_device.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <gloo/transport/tcp/device.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/gloo_signals.h"

namespace lockstep {
namespace {

struct InterfaceAddress {
  std::string interface;
  std::string address;
  bool is_ipv4 = false;
};

/// The numeric form of an IPv4 or IPv6 socket address; empty for any other family.
std::string numeric_address(const sockaddr* address) {
  const bool is_ipv4 = address->sa_family == AF_INET;
  if (!is_ipv4 && address->sa_family != AF_INET6) {
    return {};
  }
  std::array<char, NI_MAXHOST> text{};
  const auto length = static_cast<socklen_t>(is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  const int status = ::getnameinfo(address, length, text.data(),
                                   static_cast<socklen_t>(text.size()), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? text.data() : std::string();
}

std::vector<InterfaceAddress> list_interfaces() {
  ifaddrs* first = nullptr;
  LOCKSTEP_USAGE(::getifaddrs(&first) == 0, "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) {
      continue;
    }
    const std::string address = numeric_address(entry->ifa_addr);
    if (!address.empty()) {
      found.push_back({entry->ifa_name, address, entry->ifa_addr->sa_family == AF_INET});
    }
  }
  return found;
}

std::string describe(const std::vector<InterfaceAddress>& interfaces) {
  std::vector<std::string> texts;
  for (const InterfaceAddress& entry : interfaces) {
    texts.push_back(fmt::format("{} ({})", entry.interface, entry.address));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string address_of_interface(const std::string& name) {
  const auto interfaces = list_interfaces();
  const InterfaceAddress* chosen = nullptr;
  for (const InterfaceAddress& entry : interfaces) {
    if (entry.interface == name && (chosen == nullptr || (entry.is_ipv4 && !chosen->is_ipv4))) {
      chosen = &entry;
    }
  }
  LOCKSTEP_USAGE(chosen != nullptr, "no network interface '{}' with an address; there are: {}",
                 name, describe(interfaces));
  return chosen->address;
}

std::string address_of_host(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int status = ::getaddrinfo(host.c_str(), nullptr, &hints, &first);
  const auto interfaces = list_interfaces();
  LOCKSTEP_USAGE(status == 0, "host '{}': {}; the interfaces of this machine are: {}", host,
                 ::gai_strerror(status), describe(interfaces));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, &::freeaddrinfo);
  std::vector<std::string> resolved;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    const std::string address = numeric_address(entry->ai_addr);
    const bool is_local =
        address.rfind("127.", 0) == 0 ||
        std::any_of(interfaces.begin(), interfaces.end(),
                    [&](const InterfaceAddress& other) { return other.address == address; });
    if (is_local) {
      return address;
    }
    resolved.push_back(address);
  }
  throw UsageError(
      fmt::format("host '{}' ({}) is no address of this machine; its interfaces are: {}", host,
                  fmt::join(resolved, ", "), describe(interfaces)));
}

}  // namespace

GlooDevice::GlooDevice(std::string address, std::shared_ptr<void> handle)
    : address_(std::move(address)), handle_(std::move(handle)) {}

std::shared_ptr<GlooDevice> GlooDevice::open(const GlooDeviceOptions& options) {
  LOCKSTEP_USAGE(options.interface.empty() || options.host.empty(),
                 "both an interface ('{}') and a host ('{}') are given; choose one",
                 options.interface, options.host);
  const std::string address =
      options.interface.empty() ? address_of_host(options.host.empty() ? "127.0.0.1" : options.host)
                                : address_of_interface(options.interface);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
  std::shared_ptr<gloo::transport::Device> device;
  try {
    const ScopedSignalBlock block;
    device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    throw UsageError(fmt::format("cannot listen on {}: {}", address, error.what()));
  }
  return std::shared_ptr<GlooDevice>(new GlooDevice(address, std::move(device)));
}

}  // namespace lockstep
