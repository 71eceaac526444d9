# SPDX-License-Identifier: Apache-2.0
"""The training that is both predicted and measured, and the links it runs on."""
import collections

from network import Link

KIB = 1024

# Backward begins with small tensors, so that the first cap matters.
_LAYERS_KIB = [32, 64, 256, 512, 256, 128, 256, 128, 256, 64, 128, 32]
_BACKWARD_US = [3000, 4000, 5000, 3000, 4000, 5000, 3000, 4000, 5000, 6000, 4000, 6000]
LAYERS = [{"bytes": kib * KIB, "forward_us": 1500, "backward_us": us}
          for kib, us in zip(_LAYERS_KIB, _BACKWARD_US)]
OPTIMIZER_US = 1000

Caps = collections.namedtuple("Caps", ["first_bytes", "other_bytes"])
CAPS = [Caps(64 * KIB, 64 * KIB), Caps(256 * KIB, 256 * KIB), Caps(128 * KIB, 512 * KIB),
        Caps(512 * KIB, 512 * KIB), Caps(1024 * KIB, 1024 * KIB), Caps(4096 * KIB, 4096 * KIB)]

LINKS = [Link(mbit, latency_us) for latency_us in (0, 500, 2000) for mbit in (100, 200, 400)]

# A part of it that takes less than a minute.
QUICK_CAPS = [CAPS[1], CAPS[3], CAPS[5]]
QUICK_LINKS = [Link(200, 500), Link(400, 2000)]


def compute_us(layers=None):
    """Forward and backward of one step."""
    return sum(layer["forward_us"] + layer["backward_us"] for layer in layers or LAYERS)


def training_job(caps, rounds, steps_per_round):
    """A job for bench/timing_worker.cc."""
    return {"all_reduce_bytes": [], "all_reduce_repeats": 0, "layers": LAYERS,
            "optimizer_us": OPTIMIZER_US, "caps": [c._asdict() for c in caps], "rounds": rounds,
            "steps_per_round": steps_per_round}


def all_reduce_job(sizes_bytes, repeats):
    """The same without training: lone collectives."""
    return {"all_reduce_bytes": sizes_bytes, "all_reduce_repeats": repeats, "layers": [],
            "optimizer_us": 0, "caps": [], "rounds": 0, "steps_per_round": 0}
