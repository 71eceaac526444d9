// SPDX-License-Identifier: Apache-2.0
// Which address a rank chooses, and what it says where there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/host.h"
#include "core/launch_error.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

class MadeUpHost final : public Host {
 public:
  std::vector<NetworkInterface> interfaces_there = {
      {"lo", "127.0.0.1"}, {"eth0", "fe80::1"}, {"eth0", "10.0.0.1"}, {"docker0", "172.17.0.1"}};
  std::map<std::string, std::string> names;

  std::string name() const override { return "a"; }
  std::vector<NetworkInterface> interfaces() const override { return interfaces_there; }
  std::vector<std::string> resolve(const std::string& name) const override {
    return names.count(name) != 0 ? std::vector<std::string>{names.at(name)}
                                  : std::vector<std::string>();
  }
  std::string why_not_listen(const std::string& address, std::int64_t port) const override {
    return address == "10.0.0.1" && port == 29500 ? "Address already in use" : "";
  }
  std::int64_t process_id() const override { return 1; }
  bool is_running(std::int64_t) const override { return true; }
};

std::string chosen(const MadeUpHost& host, const std::string& wanted, std::int64_t port = 0) {
  return describe(choose_listen_address(host, wanted, port));
}

/// "kind: message" of the refusal.
std::string refusal(const MadeUpHost& host, const std::string& wanted, std::int64_t port = 0) {
  try {
    return "no error, but " + chosen(host, wanted, port);
  } catch (const LaunchError& error) {
    return error.kind() + ": " + error.what();
  }
}

TEST(ListenAddressTest, TakesANameAPatternOrAnAddress) {
  const MadeUpHost host;
  EXPECT_EQ(chosen(host, "lo"), "lo (127.0.0.1)");
  EXPECT_EQ(chosen(host, "eth0"), "eth0 (10.0.0.1)") << "IPv4 first";
  EXPECT_EQ(chosen(host, "^lo"), "eth0 (10.0.0.1)");
  EXPECT_EQ(chosen(host, "^lo,eth"), "docker0 (172.17.0.1)");
  EXPECT_EQ(chosen(host, "172.17.0.1"), "docker0 (172.17.0.1)");
  EXPECT_EQ(chosen(host, "fe80::1"), "eth0 (fe80::1)");
  EXPECT_EQ(chosen(host, "eth0", 29501), "eth0 (10.0.0.1 port 29501)");
}

TEST(ListenAddressTest, WithoutAWishTheHostsOwnNameDecides) {
  MadeUpHost host;
  host.names = {{"a", "10.0.0.1"}};
  EXPECT_EQ(chosen(host, ""), "eth0 (10.0.0.1)");
  host.names = {{"a", "127.0.0.1"}};
  EXPECT_EQ(chosen(host, ""), "lo (127.0.0.1)");
  host.names = {{"a", "127.0.1.1"}};
  EXPECT_EQ(chosen(host, ""), "127.0.1.1") << "of no interface, and yet this machine's";
  host.names = {{"a", "192.0.2.1"}};
  EXPECT_THAT(refusal(host, ""), AllOf(HasSubstr("no_such_interface"), HasSubstr("192.0.2.1"),
                                       HasSubstr("lo (127.0.0.1), eth0 (fe80::1)")));
  host.names = {};
  EXPECT_THAT(refusal(host, ""), HasSubstr("own name 'a' is not known"));
}

TEST(ListenAddressTest, AWishThatNothingFitsIsRefusedWithWhatThereIs) {
  const MadeUpHost host;
  EXPECT_THAT(refusal(host, "eth1"),
              AllOf(HasSubstr("no_such_interface: host a has no network interface 'eth1'"),
                    HasSubstr("docker0 (172.17.0.1)")));
  EXPECT_THAT(refusal(host, "eth"), HasSubstr("no network interface 'eth'")) << "no prefixes";
  EXPECT_THAT(refusal(host, "10.0.0.9"), HasSubstr("no interface with the address '10.0.0.9'"));
  EXPECT_THAT(refusal(host, "^lo,eth,docker"),
              HasSubstr("no interface besides those of the pattern '^lo,eth,docker'"));
  MadeUpHost bare;
  bare.interfaces_there.clear();
  EXPECT_THAT(refusal(bare, "eth0"), HasSubstr("there are: none"));
}

TEST(ListenAddressTest, APortThatIsTakenIsRefused) {
  const MadeUpHost host;
  EXPECT_THAT(refusal(host, "eth0", 29500),
              AllOf(HasSubstr("port_taken: cannot listen on 10.0.0.1 port 29500 of host a"),
                    HasSubstr("already in use"), HasSubstr("port 0")));
}

TEST(ListenAddressTest, KnowsLoopbackFromOtherAddresses) {
  EXPECT_TRUE(is_loopback("127.0.0.1"));
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.127.0.1"));
  EXPECT_TRUE(is_numeric_address("10.0.0.1"));
  EXPECT_TRUE(is_numeric_address("fe80::1"));
  EXPECT_FALSE(is_numeric_address("eth0"));
}

TEST(ThisHostTest, KnowsItsInterfacesAndItsProcesses) {
  const Host& host = this_host();
  EXPECT_FALSE(host.name().empty());
  EXPECT_THAT(host.interfaces(), Contains(Field(&NetworkInterface::address, "127.0.0.1")));
  EXPECT_THAT(host.resolve("localhost"), Not(::testing::IsEmpty()));
  EXPECT_EQ(host.process_id(), ::getpid());
  EXPECT_TRUE(host.is_running(::getpid()));
}

TEST(ThisHostTest, SeesThatAPortIsHeld) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(listener, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(where);
  auto* const address = reinterpret_cast<sockaddr*>(&where);
  ASSERT_EQ(::bind(listener, address, length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, address, &length), 0);
  const std::int64_t port = ntohs(where.sin_port);
  EXPECT_THAT(this_host().why_not_listen("127.0.0.1", port), HasSubstr("in use"));
  ::close(listener);
  EXPECT_EQ(this_host().why_not_listen("127.0.0.1", port), "");
  EXPECT_EQ(this_host().why_not_listen("127.0.0.1", 0), "");
  EXPECT_THAT(this_host().why_not_listen("192.0.2.1", 0), HasSubstr("annot assign"));
  EXPECT_EQ(this_host().why_not_listen("127.0.0.1", find_free_port("127.0.0.1")), "");
  EXPECT_THROW(find_free_port("192.0.2.1"), LaunchError);
}

}  // namespace
}  // namespace lockstep::test
