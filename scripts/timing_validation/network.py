# SPDX-License-Identifier: Apache-2.0
"""Ranks on links of a given bandwidth and latency: one network namespace per rank.

Bandwidth is the kernel's token bucket (tbf) on each rank's device. Without latency the ranks meet
at a bridge, over veth pairs. With it, netem on the bridge's ports holds packets back, or, where the
kernel has no netem, a relay between TUN devices does (bench/link_relay.cc).
"""
import collections
import glob
import os
import re
import subprocess

import priority

MTU_BYTES = 9000
_PREFIX = "lockstep-"

# What is left of TCP's own dynamics is switched off or cut short, since the simulator knows nothing
# of it. With one packet a send (gso_max_segs below) and tcp_limit_output_bytes, a connection has
# two packets in the shaper's queue and no more.
_TCP_SETTINGS = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_no_metrics_save": "1",
    "tcp_autocorking": "0",
    "tcp_limit_output_bytes": str(2 * MTU_BYTES),
    "tcp_wmem": "4096 8388608 8388608",
    "tcp_rmem": "4096 8388608 8388608",
}

# What a message of another connection may find queued before it.
BACKLOG_BYTES = 2 * MTU_BYTES


class Unavailable(Exception):
    """This machine, or this user, cannot have such networks; says why."""


# mbit: payload and headers, None: as fast as it goes; latency_us: one way.
Link = collections.namedtuple("Link", ["mbit", "latency_us"])


def burst_bytes(mbit):
    """What the shaper lets pass at once after a pause.

    A quarter of a millisecond's worth and at least two packets: with less, late timers of the
    kernel would cost bandwidth.
    """
    return max(2 * (MTU_BYTES + 14), int(mbit * 1e6 / 8 * 0.00025))


def tbf_arguments(mbit):
    """Arguments of `tc` for a shaper of this rate whose queue is never full."""
    return ["tbf", "rate", f"{mbit}mbit", "burst", str(burst_bytes(mbit)), "limit", str(64 << 20)]


def _run(*arguments, check=True):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise Unavailable(f"`{' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.returncode == 0


def _in(namespace, *arguments, check=True):
    return _run("ip", "netns", "exec", namespace, *arguments, check=check)


def remove_stale():
    """Removes the namespaces of runs that are no more, such as killed ones."""
    for path in glob.glob(f"/run/netns/{_PREFIX}*"):
        owner = re.match(_PREFIX + r"(\d+)-", os.path.basename(path))
        if owner and not os.path.exists(f"/proc/{owner.group(1)}"):
            _run("ip", "netns", "del", os.path.basename(path), check=False)


class Network:
    """Context manager; `namespaces` and `addresses` are by rank."""

    def __init__(self, ranks, link, relay_program):
        self.link = link
        self.namespaces = [f"{_PREFIX}{os.getpid()}-{rank}" for rank in range(ranks)]
        self.addresses = [f"10.77.0.{rank + 1}" for rank in range(ranks)]
        self.mechanism = None  # "bridge", "bridge+netem" or "relay", once entered
        self.dropped = 0  # packets that the relay lost, known once left
        self._switch = f"{_PREFIX}{os.getpid()}-switch"
        self._relay_program = relay_program
        self._relay = None

    def __enter__(self):
        try:
            for namespace in self.namespaces + [self._switch]:
                _run("ip", "netns", "add", namespace)
                for name, value in _TCP_SETTINGS.items():
                    _in(namespace, "sh", "-c", f'echo "{value}" > /proc/sys/net/ipv4/{name}')
            if self.link.latency_us == 0:
                self.mechanism = "bridge"
            elif _in(self._switch, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay",
                     "1ms", check=False):
                self.mechanism = "bridge+netem"
            else:
                self.mechanism = "relay"
            (self._start_relay if self.mechanism == "relay" else self._build_bridge)()
            for namespace, address in zip(self.namespaces, self.addresses):
                _in(namespace, "ip", "addr", "add", f"{address}/24", "dev", "link0")
                _in(namespace, "ip", "link", "set", "link0", "up", "mtu", str(MTU_BYTES),
                    "txqueuelen", "10000", "gso_max_segs", "1")
                _in(namespace, "ip", "link", "set", "lo", "up")
                if self.link.mbit:
                    _in(namespace, "tc", "qdisc", "add", "dev", "link0", "root",
                        *tbf_arguments(self.link.mbit))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        if self._relay:
            said, _ = self._relay.communicate()  # ends with its standard input
            self.dropped = int(said.split()[-1]) if said else 0
            self._relay = None
        for namespace in self.namespaces + [self._switch]:
            _run("ip", "netns", "del", namespace, check=False)

    def _build_bridge(self):
        _in(self._switch, "ip", "link", "add", "bridge0", "mtu", str(MTU_BYTES), "type", "bridge")
        for rank, namespace in enumerate(self.namespaces):
            port = f"port{rank}"
            _in(self._switch, "ip", "link", "add", port, "mtu", str(MTU_BYTES), "type", "veth",
                "peer", "name", "link0", "mtu", str(MTU_BYTES), "netns", namespace)
            _in(self._switch, "ip", "link", "set", port, "master", "bridge0", "up")
            if self.mechanism == "bridge+netem":
                _in(self._switch, "tc", "qdisc", "add", "dev", port, "root", "netem", "delay",
                    f"{self.link.latency_us}us", "limit", "100000")
        _in(self._switch, "ip", "link", "set", "bridge0", "up")

    def _start_relay(self):
        if not os.path.exists("/dev/net/tun"):
            raise Unavailable("latency needs netem or /dev/net/tun, and there is neither")
        ends = [f"/run/netns/{n}={a}" for n, a in zip(self.namespaces, self.addresses)]
        self._relay = subprocess.Popen(
            priority.of_relay() +
            [self._relay_program, str(self.link.latency_us), str(MTU_BYTES)] + ends,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if self._relay.stdout.readline() != "ready\n":
            raise Unavailable(f"{self._relay_program} could not start (see above)")
