// SPDX-License-Identifier: Apache-2.0
// What the system says of this machine.
#include "core/host.h"

#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>

#include "core/check.h"
#include "core/launch_error.h"

namespace lockstep {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// The numeric form of an IPv4 or IPv6 socket address; empty for any other family.
std::string numeric_text(const sockaddr* address) {
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

AddressList look_up(const std::string& name, int flags, const char* service = nullptr) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  const int status = ::getaddrinfo(name.c_str(), service, &hints, &first);
  return AddressList(status == 0 ? first : nullptr, &::freeaddrinfo);
}

/// Listens on a port while it lives.
class Listener {
 public:
  Listener(const std::string& address, std::int64_t port) {
    const AddressList where =
        look_up(address, AI_NUMERICHOST | AI_NUMERICSERV, std::to_string(port).c_str());
    if (where == nullptr) {
      error_ = EADDRNOTAVAIL;
      return;
    }
    descriptor_ = ::socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    LOCKSTEP_CHECK(descriptor_ >= 0, "no socket: {}", std::generic_category().message(errno));
    const int yes = 1;
    ::setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    const bool listens = ::bind(descriptor_, where->ai_addr, where->ai_addrlen) == 0 &&
                         ::listen(descriptor_, 1) == 0;
    error_ = listens ? 0 : errno;
  }
  ~Listener() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// 0, or why it does not listen.
  int error() const { return error_; }

  std::int64_t port() const {
    sockaddr_storage where{};
    socklen_t length = sizeof(where);
    auto* const address = reinterpret_cast<sockaddr*>(&where);
    LOCKSTEP_CHECK(::getsockname(descriptor_, address, &length) == 0, "{}",
                   std::generic_category().message(errno));
    return ntohs(where.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&where)->sin_port
                                            : reinterpret_cast<sockaddr_in6*>(&where)->sin6_port);
  }

 private:
  int descriptor_ = -1;
  int error_ = 0;
};

class SystemHost final : public Host {
 public:
  std::string name() const override {
    std::array<char, 256> text{};
    LOCKSTEP_CHECK(::gethostname(text.data(), text.size() - 1) == 0, "{}",
                   std::generic_category().message(errno));
    return text[0] != '\0' ? text.data() : "localhost";
  }

  std::vector<NetworkInterface> interfaces() const override {
    ifaddrs* first = nullptr;
    LOCKSTEP_USAGE(::getifaddrs(&first) == 0, "cannot list the network interfaces: {}",
                   std::generic_category().message(errno));
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
    std::vector<NetworkInterface> found;
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      const std::string address = entry->ifa_addr != nullptr ? numeric_text(entry->ifa_addr) : "";
      if (!address.empty()) {
        found.push_back({entry->ifa_name, address});
      }
    }
    return found;
  }

  std::vector<std::string> resolve(const std::string& name) const override {
    const AddressList list = look_up(name, 0);
    std::vector<std::string> addresses;
    for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
      addresses.push_back(numeric_text(entry->ai_addr));
    }
    return addresses;
  }

  // Binds and lets go, as whoever listens in earnest does next. Between the two somebody else may
  // come, and then that second try fails with the same message.
  std::string why_not_listen(const std::string& address, std::int64_t port) const override {
    const Listener listener(address, port);
    return listener.error() == 0 ? std::string()
                                 : std::generic_category().message(listener.error());
  }

  std::int64_t process_id() const override { return ::getpid(); }
  bool is_running(std::int64_t process_id) const override {
    return ::kill(static_cast<pid_t>(process_id), 0) == 0 || errno != ESRCH;
  }
};

}  // namespace

const Host& this_host() {
  static const SystemHost host;
  return host;
}

std::int64_t find_free_port(const std::string& address) {
  const Listener listener(address, 0);
  if (listener.error() != 0) {
    throw LaunchError("no_such_interface",
                      fmt::format("cannot listen on {}: {}", address,
                                  std::generic_category().message(listener.error())));
  }
  return listener.port();
}

bool is_numeric_address(const std::string& text) {
  return look_up(text, AI_NUMERICHOST) != nullptr;
}

}  // namespace lockstep
