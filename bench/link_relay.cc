// SPDX-License-Identifier: Apache-2.0
// A switch with a delay, for kernels without netem: carries IPv4 packets between TUN devices, one
// in each of several network namespaces, and holds each back for a fixed time.
//
// link_relay DELAY_US MTU NAMESPACE=ADDRESS...
//
// Makes the device `link0` in every namespace (a path such as /run/netns/NAME), and goes on until a
// signal or the end of its standard input. Prints "ready" once packets are carried, and in the end
// how many were carried and how many were dropped, since a device's queue was full; the caller
// judges whether that matters. What is not IPv4, or for nobody, counts for neither.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kNsPerSecond = 1'000'000'000;
constexpr std::size_t kIpv4HeaderBytes = 20;
constexpr std::size_t kDestinationOffset = 16;  // in an IPv4 header

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// Errors: runtime_error unless `text` is a number from 0 to `most`.
std::int64_t parse_number(const std::string& name, const std::string& text, std::int64_t most) {
  std::int64_t value = -1;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0 || value > most) {
    throw std::runtime_error(
        fmt::format("{} is '{}'; expected a number from 0 to {}", name, text, most));
  }
  return value;
}

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

/// Opens device `link0` in another network namespace; it stays there, its descriptor is ours.
int open_device(const std::string& network_namespace) {
  const int inside = ::open(network_namespace.c_str(), O_RDONLY | O_CLOEXEC);
  if (inside < 0 || ::setns(inside, CLONE_NEWNET) != 0) {
    fail("cannot enter network namespace " + network_namespace);
  }
  ::close(inside);
  const int device = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, "link0", IFNAMSIZ - 1);
  if (device < 0 || ::ioctl(device, TUNSETIFF, &request) != 0) {
    fail("cannot make a TUN device in " + network_namespace);
  }
  return device;
}

struct Packet {
  std::int64_t due_ns = 0;
  int to = -1;
  std::vector<char> bytes;
};

class Relay {
 public:
  Relay(std::int64_t delay_ns, std::size_t mtu) : delay_ns_(delay_ns), buffer_(mtu + 1) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll_ < 0 || timer_ < 0) {
      fail("cannot make an epoll or a timer");
    }
    watch(timer_, "the timer");
    watch(STDIN_FILENO, "standard input, whose end stops the relay; expected a pipe or a terminal");
  }

  void add(const std::string& network_namespace, const std::string& address) {
    in_addr parsed{};
    if (::inet_pton(AF_INET, address.c_str(), &parsed) != 1) {
      throw std::runtime_error("not an IPv4 address: " + address);
    }
    const int device = open_device(network_namespace);
    device_of_[parsed.s_addr] = device;
    watch(device, "a device");
  }

  void run() {
    std::array<epoll_event, 16> events{};
    while (true) {
      const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
      if (count < 0 && errno != EINTR) {
        fail("epoll_wait");
      }
      for (int i = 0; i < count; ++i) {
        const int ready = events[static_cast<std::size_t>(i)].data.fd;
        if (ready == STDIN_FILENO) {
          return;
        }
        if (ready != timer_) {
          take_from(ready);
        }
      }
      deliver();
    }
  }

  std::int64_t carried() const { return carried_; }
  std::int64_t dropped() const { return dropped_; }

 private:
  void watch(int descriptor, const char* name) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) {
      fail(fmt::format("cannot wait for {}", name));
    }
  }

  // A few at a time, so that what is due is not kept waiting by a device that never runs dry.
  void take_from(int device) {
    for (int i = 0; i < 8; ++i) {
      const ssize_t bytes = ::read(device, buffer_.data(), buffer_.size());
      if (bytes <= 0) {
        return;
      }
      const auto length = static_cast<std::size_t>(bytes);
      in_addr_t destination = 0;
      const bool is_ipv4 = length >= kIpv4HeaderBytes && (buffer_[0] & 0xf0) == 0x40;
      if (is_ipv4) {
        std::memcpy(&destination, buffer_.data() + kDestinationOffset, sizeof(destination));
      }
      const auto found = device_of_.find(destination);
      if (!is_ipv4 || found == device_of_.end()) {
        continue;  // such as what IPv6 says when an interface comes up
      }
      // The delay is the same for all, so the queue is in order of due times.
      queue_.push_back(
          {now_ns() + delay_ns_, found->second, {buffer_.data(), buffer_.data() + length}});
    }
  }

  void deliver() {
    while (!queue_.empty() && queue_.front().due_ns <= now_ns()) {
      const Packet& packet = queue_.front();
      const bool written = ::write(packet.to, packet.bytes.data(), packet.bytes.size()) > 0;
      ++(written ? carried_ : dropped_);
      queue_.pop_front();
    }
    itimerspec next{};  // zero disarms it
    if (!queue_.empty()) {
      next.it_value.tv_sec = queue_.front().due_ns / kNsPerSecond;
      next.it_value.tv_nsec = queue_.front().due_ns % kNsPerSecond;
    }
    ::timerfd_settime(timer_, TFD_TIMER_ABSTIME, &next, nullptr);
  }

  const std::int64_t delay_ns_;
  std::vector<char> buffer_;
  int epoll_ = -1, timer_ = -1;
  std::map<in_addr_t, int> device_of_;
  std::deque<Packet> queue_;
  std::int64_t carried_ = 0, dropped_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: link_relay DELAY_US MTU NAMESPACE=ADDRESS...\n");
    return 2;
  }
  try {
    ::prctl(PR_SET_TIMERSLACK, 1);
    const std::int64_t delay_us = parse_number("DELAY_US", argv[1], 60'000'000);
    Relay relay(delay_us * 1000, static_cast<std::size_t>(parse_number("MTU", argv[2], 65535)));
    for (int i = 3; i < argc; ++i) {
      const std::string end(argv[i]);
      const auto split = end.find('=');
      if (split == std::string::npos) {
        throw std::runtime_error("not NAMESPACE=ADDRESS: " + end);
      }
      relay.add(end.substr(0, split), end.substr(split + 1));
    }
    fmt::print("ready\n");
    std::fflush(stdout);
    relay.run();
    fmt::print("carried {} dropped {}\n", relay.carried(), relay.dropped());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "link_relay: {}\n", error.what());
    return 1;
  }
}
