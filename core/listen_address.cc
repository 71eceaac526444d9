// SPDX-License-Identifier: Apache-2.0
// Which of a machine's addresses its ranks are reached at.
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "core/host.h"
#include "core/launch_error.h"

namespace lockstep {
namespace {

bool is_ipv4(const std::string& address) { return address.find(':') == std::string::npos; }

bool begins_with_any(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& prefix) {
    return !prefix.empty() && name.rfind(prefix, 0) == 0;
  });
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

/// The first IPv4 address among the interfaces that `fits`, else the first one.
template <class Fits>
std::optional<ListenAddress> first_that(const std::vector<NetworkInterface>& interfaces,
                                        const Fits& fits) {
  const NetworkInterface* chosen = nullptr;
  for (const NetworkInterface& entry : interfaces) {
    if (fits(entry) &&
        (chosen == nullptr || (is_ipv4(entry.address) && !is_ipv4(chosen->address)))) {
      chosen = &entry;
    }
  }
  return chosen != nullptr ? std::optional(ListenAddress{chosen->name, chosen->address, 0})
                           : std::nullopt;
}

/// What the host's name resolves to. Elsewhere than on this machine nobody can listen.
ListenAddress of_own_name(const Host& host, const std::vector<NetworkInterface>& interfaces) {
  const std::vector<std::string> addresses = host.resolve(host.name());
  for (const std::string& address : addresses) {
    const auto own = first_that(
        interfaces, [&](const NetworkInterface& entry) { return entry.address == address; });
    if (own) {
      return *own;
    }
    if (is_loopback(address)) {
      return {"", address, 0};
    }
  }
  throw LaunchError(
      "no_such_interface",
      addresses.empty()
          ? fmt::format("the host's own name '{}' is not known to it; choose an interface: {}",
                        host.name(), describe(interfaces))
          : fmt::format("the host's own name '{}' stands for {}, which is no address of it; choose "
                        "an interface: {}",
                        host.name(), fmt::join(addresses, ", "), describe(interfaces)));
}

std::optional<ListenAddress> of_wish(const std::vector<NetworkInterface>& interfaces,
                                     const std::string& wanted) {
  if (wanted.front() == '^') {
    const auto prefixes = split_at_commas(wanted.substr(1));
    return first_that(interfaces, [&](const NetworkInterface& entry) {
      return !begins_with_any(entry.name, prefixes);
    });
  }
  return first_that(interfaces, [&](const NetworkInterface& entry) {
    return entry.name == wanted || entry.address == wanted;
  });
}

}  // namespace

ListenAddress choose_listen_address(const Host& host, const std::string& wanted,
                                    std::int64_t port) {
  const auto interfaces = host.interfaces();
  ListenAddress listen;
  if (wanted.empty()) {
    listen = of_own_name(host, interfaces);
  } else if (const auto found = of_wish(interfaces, wanted)) {
    listen = *found;
  } else {
    const char* what = wanted.front() == '^'        ? "interface besides those of the pattern"
                       : is_numeric_address(wanted) ? "interface with the address"
                                                    : "network interface";
    throw LaunchError("no_such_interface",
                      fmt::format("host {} has no {} '{}'; there are: {}", host.name(), what,
                                  wanted, describe(interfaces)));
  }
  listen.port = port;
  const std::string why_not = port != 0 ? host.why_not_listen(listen.address, port) : "";
  if (!why_not.empty()) {
    throw LaunchError(
        "port_taken",
        fmt::format("cannot listen on {} port {} of host {}: {}; choose another port, "
                    "or port 0, for which the system finds a free one",
                    listen.address, port, host.name(), why_not));
  }
  return listen;
}

std::string describe(const ListenAddress& listen) {
  const std::string port = listen.port != 0 ? fmt::format(" port {}", listen.port) : "";
  return listen.interface.empty()
             ? listen.address + port
             : fmt::format("{} ({}{})", listen.interface, listen.address, port);
}

std::string describe(const std::vector<NetworkInterface>& interfaces) {
  std::vector<std::string> texts;
  for (const NetworkInterface& entry : interfaces) {
    texts.push_back(fmt::format("{} ({})", entry.name, entry.address));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1";
}

}  // namespace lockstep
