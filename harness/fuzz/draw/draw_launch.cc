// SPDX-License-Identifier: Apache-2.0
// Draws [launch]: hosts that reach each other, and processes that meet.
#include <string>

#include "harness/fuzz/draw/draw_topics.h"

namespace lockstep::harness::fuzz {

void draw_launch(Case& value, const Space& space, Dice& dice) {
  LaunchSpec& launch = value.launch;
  launch = LaunchSpec();
  if (space.backend != "sim" || !dice.chance(4)) return;
  if (dice.chance(20)) {
    launch.interface = "lo";  // of the only host
    return;
  }
  const bool has_bridge = dice.chance(30);
  const std::int64_t num_hosts = dice.between(1, 3);
  for (std::int64_t i = 0; i < num_hosts; ++i) {
    HostSpec host;
    host.name = "host" + std::to_string(i);
    const std::string address = "10.0.0." + std::to_string(i + 1);
    host.interfaces = {{"lo", "127.0.0.1"}};
    if (has_bridge) host.interfaces.emplace_back("docker0", "172.17.0.1");
    host.interfaces.emplace_back("eth0", address);
    host.names = {{host.name, address}};
    launch.hosts.push_back(std::move(host));
  }
  launch.interface = has_bridge ? dice.one_of<std::string>({"", "eth0", "^docker,lo"})
                                : dice.one_of<std::string>({"", "eth0", "^lo"});
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    ProcessSpec process;
    process.rank = rank;
    process.host = dice.one_of(launch.hosts).name;
    // In any order of starting.
    launch.processes.insert(launch.processes.begin() + dice.between(0, rank), process);
  }
}

}  // namespace lockstep::harness::fuzz
