// SPDX-License-Identifier: Apache-2.0
// The machine as a rank sees it, and the address that the rank chooses to be reached at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// An address of this machine; an interface with several is listed several times.
struct NetworkInterface {
  std::string name;     ///< "eth0"
  std::string address;  ///< numeric, IPv4 or IPv6
};

/// What a rank can learn of its machine. The real one asks the system; the simulator has its own.
/// Threads: any, at once.
class Host {
 public:
  virtual ~Host() = default;

  virtual std::string name() const = 0;
  /// In the system's order.
  virtual std::vector<NetworkInterface> interfaces() const = 0;
  /// Numeric addresses in the order of preference; empty: the name is not known.
  virtual std::vector<std::string> resolve(const std::string& name) const = 0;
  /// Why nobody can begin to listen there now; empty: somebody can. Port 0 is always free.
  virtual std::string why_not_listen(const std::string& address, std::int64_t port) const = 0;
  virtual std::int64_t process_id() const = 0;
  /// Whether a process of this machine still runs.
  virtual bool is_running(std::int64_t process_id) const = 0;
};

/// The machine that this process runs on.
const Host& this_host();

/// Where a rank listens.
struct ListenAddress {
  std::string interface;  ///< empty: the address belongs to no interface of this machine
  std::string address;    ///< numeric
  std::int64_t port = 0;  ///< 0: the system chooses one, which cannot be taken
};

/// Chooses the address that peers are told. `wanted` is one of
///   an interface's exact name ("eth0"): its first IPv4 address, else its first one;
///   "^" and prefixes ("^lo,docker"): the first interface whose name begins with none of them;
///   a numeric address, which some interface must have;
///   empty: what the host's own name resolves to.
/// A loopback address is a valid choice here; whether it will do depends on the peers.
/// Errors: LaunchError `no_such_interface`, with all interfaces there are; `port_taken`.
ListenAddress choose_listen_address(const Host& host, const std::string& wanted,
                                    std::int64_t port = 0);

/// A port that nobody listened on when it was looked for; whoever takes it first has it, so that
/// where there is a choice a program listens on port 0 and tells what it got.
/// Errors: LaunchError `no_such_interface` for an address that this machine does not have.
std::int64_t find_free_port(const std::string& address);

/// "eth0 (10.0.0.1)", with the port if there is one.
std::string describe(const ListenAddress& listen);
/// "lo (127.0.0.1), eth0 (10.0.0.1)"; "none" if there are none.
std::string describe(const std::vector<NetworkInterface>& interfaces);

/// Whether other machines cannot reach it: 127.0.0.0/8, ::1.
bool is_loopback(const std::string& address);
/// Whether the text is an IPv4 or IPv6 address.
bool is_numeric_address(const std::string& text);

}  // namespace lockstep
