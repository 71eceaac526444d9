// SPDX-License-Identifier: Apache-2.0
// Ranks on two hosts: network and host name namespaces of this machine, joined by a cable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/gloo_communicator.h"
#include "core/rendezvous.h"
#include "tests/support/run_program.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

// The inner shell is host b; its process is where the other end of the cable goes. All namespaces
// end with their processes.
constexpr char kTwoHosts[] = R"(
  set -e
  hostname a
  ip link set lo up
  coproc OTHER { exec unshare --net --uts bash -c '
    set -e
    hostname b
    ip link set lo up
    echo ready
    read
    ip addr add 10.77.0.2/24 dev cable_b
    ip link set cable_b up
    LOCKSTEP_TEST_RANK=1 exec "$0" "$@"' "$0" "$@"; }
  read <&"${OTHER[0]}"
  ip link add cable_a type veth peer name cable_b netns "$OTHER_PID"
  ip addr add 10.77.0.1/24 dev cable_a
  ip link set cable_a up
  other="$OTHER_PID"
  echo go >&"${OTHER[1]}"
  LOCKSTEP_TEST_RANK=0 "$0" "$@" || true
  wait "$other" || true
)";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Started by the tests below, on either host. Leaves what became of it in a file.
TEST(HostWorker, DISABLED_IsARankOfItsOwn) {
  GlooOptions options;
  options.rank = std::stoll(environment("LOCKSTEP_TEST_RANK"));
  options.world_size = 2;
  options.directory = environment("LOCKSTEP_TEST_DIRECTORY");
  options.token = environment("LOCKSTEP_TEST_TOKEN");
  options.listen_on.interface = environment("LOCKSTEP_TEST_INTERFACE");
  std::ofstream result(environment("LOCKSTEP_TEST_RESULT") + std::to_string(options.rank));
  try {
    const auto communicator = make_gloo_communicator(options);
    at::Tensor tensor = at::full({3}, static_cast<double>(options.rank + 1), at::kFloat);
    communicator->all_reduce(tensor, ReduceOp::kSum, {})->wait();
    result << "sum " << tensor[0].item<float>() << "; ";
    result << static_cast<GlooCommunicator&>(*communicator).listens_on();
  } catch (const LaunchError& error) {
    result << error.kind() << ": " << error.what();
  } catch (const std::exception& error) {
    result << "another error: " << error.what();
  }
}

class HostProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const ProgramResult tried = run_program({"unshare", "--net", "--uts", "ip", "link", "add",
                                             "cable", "type", "veth", "peer", "name", "other"});
    if (tried.exit_status != 0) {
      GTEST_SKIP() << "no namespaces or virtual cables can be made here: " << tried.err;
    }
  }

  /// What each rank says when both want `interface`.
  std::vector<std::string> run(const std::string& interface) {
    const auto directory = RendezvousDirectory::create();
    const auto results = RendezvousDirectory::create();
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    const ProgramResult ran = run_program(
        {"env", "LOCKSTEP_TEST_DIRECTORY=" + directory.path(),
         "LOCKSTEP_TEST_TOKEN=" + directory.token(), "LOCKSTEP_TEST_INTERFACE=" + interface,
         "LOCKSTEP_TEST_RESULT=" + results.path() + "/rank.", "unshare", "--net", "--uts", "bash",
         "-c", kTwoHosts, program, "--gtest_filter=HostWorker.DISABLED_IsARankOfItsOwn",
         "--gtest_also_run_disabled_tests", "--gtest_brief=1"});
    EXPECT_EQ(ran.exit_status, 0) << ran.out << ran.err;
    return {read_file(results.path() + "/rank.0"), read_file(results.path() + "/rank.1")};
  }
};

TEST_F(HostProcessTest, RanksReachEachOtherOverTheCable) {
  const std::vector<std::string> said = run("^lo");
  EXPECT_EQ(said[0], "sum 3; rank 0 on host a listens on cable_a (10.77.0.1)");
  EXPECT_EQ(said[1], "sum 3; rank 1 on host b listens on cable_b (10.77.0.2)");
}

TEST_F(HostProcessTest, LoopbackIsRefusedOnBothBeforeTheyConnect) {
  for (const std::string& said : run("lo")) {
    EXPECT_THAT(said, HasSubstr("loopback_address: rank 0 listens on 127.0.0.1, which ranks on "
                                "other machines (a, b) cannot reach"));
  }
}

TEST_F(HostProcessTest, AnInterfaceOfOneHostIsToldToBoth) {
  for (const std::string& said : run("cable_a")) {
    EXPECT_THAT(said, HasSubstr("no_such_interface: rank 1: host b has no network interface "
                                "'cable_a'; there are: lo (127.0.0.1), cable_b (10.77.0.2)"));
  }
}

}  // namespace
}  // namespace lockstep::test
