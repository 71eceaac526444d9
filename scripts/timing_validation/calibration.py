# SPDX-License-Identifier: Apache-2.0
"""What the model's fixed costs are on this machine.

Measured with collectives alone and with one rank alone, on links none of which is predicted.
"""
import collections
import statistics

from network import Link
import workload

SMALL_BYTES = 4 * workload.KIB
LARGE_BYTES = 1024 * workload.KIB
# Both of two segments per chunk, so that nothing but the data differs between them.
RATE_BYTES = (1024 * workload.KIB, 4096 * workload.KIB)
REFERENCE_MBIT = 300
REFERENCE_LATENCY_US = 1000

# reaction_us: of a message, beyond the link's latency; payload_share: of the shaper's rate;
# add_gbyte_per_s: of copying and adding.
Costs = collections.namedtuple("Costs", ["reaction_us", "payload_share", "add_gbyte_per_s"])


def latencies_of_small(ranks):
    """How many latencies an all_reduce of little data takes: two for its entry and two for each hop
    of the ring, since Gloo sends what was asked for only."""
    return 2 + 2 * 2 * (ranks - 1)


def bytes_sent(ranks, all_reduce_bytes):
    """By each rank in a ring."""
    return 2 * (ranks - 1) / ranks * all_reduce_bytes


def reaction_us(ranks, latency_us, small_s):
    return small_s * 1e6 / latencies_of_small(ranks) - latency_us


def payload_share(ranks, mbit, sizes_bytes, seconds):
    sent = bytes_sent(ranks, sizes_bytes[1] - sizes_bytes[0])
    return sent * 8 / (seconds[1] - seconds[0]) / (mbit * 1e6)


def add_gbyte_per_s(ranks, small_s, large_s):
    return bytes_sent(ranks, LARGE_BYTES - SMALL_BYTES) / (large_s - small_s) / 1e9


class Calibrator:
    """Measures each thing once."""

    def __init__(self, measure, repeats, say):
        """`measure(ranks, link, job)` as measure.measure does; `say` prints a line.

        `repeats`: of collectives that take many milliseconds; of short ones, which other work
        disturbs more, there are four times as many.
        """
        self._measure = measure
        self._repeats = repeats
        self._say = say
        self._known = {}

    def _once(self, key, find):
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def _all_reduces(self, ranks, link, sizes_bytes):
        """Median seconds, by size."""
        repeats = self._repeats * (1 if link.mbit else 4)
        result = self._measure(ranks, link, workload.all_reduce_job(sizes_bytes, repeats))
        return [statistics.median(entry["seconds"]) for entry in result["all_reduces"]]

    def _unshaped(self, ranks):
        return self._once(("unshaped", ranks), lambda: self._all_reduces(
            ranks, Link(None, 0), [SMALL_BYTES, LARGE_BYTES]))

    def costs(self, ranks, has_latency):
        return self._once(("costs", ranks, has_latency), lambda: self._costs(ranks, has_latency))

    def _costs(self, ranks, has_latency):
        small_s, large_s = self._unshaped(ranks)
        adding = add_gbyte_per_s(ranks, small_s, large_s)
        latency_us = REFERENCE_LATENCY_US if has_latency else 0
        if has_latency:
            small_s, = self._all_reduces(ranks, Link(None, latency_us), [SMALL_BYTES])
        shaped_s = self._all_reduces(ranks, Link(REFERENCE_MBIT, latency_us), RATE_BYTES)
        found = Costs(reaction_us(ranks, latency_us, small_s),
                      payload_share(ranks, REFERENCE_MBIT, RATE_BYTES, shaped_s), adding)
        self._say(f"calibration, {ranks} ranks, {'with' if has_latency else 'without'} latency: "
                  f"{found.reaction_us:.0f} us to react to a message, "
                  f"{found.payload_share:.4f} of the rate for payload, "
                  f"{found.add_gbyte_per_s:.2f} GB/s to copy and add")
        return found

    def step_us(self):
        """What a step takes beyond its sleeps, on one rank without peers."""
        return self._once("step", self._find_step_us)

    def _find_step_us(self):
        job = workload.training_job([workload.CAPS[2]], 2, self._repeats)
        steps = self._measure(1, Link(None, 0), job)["steps"][0]["seconds"]
        asked_us = workload.compute_us() + workload.OPTIMIZER_US
        found = statistics.median(steps) * 1e6 - asked_us
        self._say(f"calibration, 1 rank: a step takes {found:.0f} us beyond its "
                  f"{asked_us / 1000:.1f} ms of sleep")
        return found
