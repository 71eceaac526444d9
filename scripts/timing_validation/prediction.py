# SPDX-License-Identifier: Apache-2.0
"""Asks `lockstep simulate` how long a step takes, with a timing file."""
import json
import os
import subprocess
import tempfile

from network import BACKLOG_BYTES, burst_bytes
import workload


def timing_file(ranks, link, caps, costs, step_us):
    """The text of a timing file with one point per pair of caps, in their order."""
    lines = [
        "schema = 1",
        'kind = "timing"',
        f'title = "{ranks} ranks at {link.mbit} Mbit/s and {link.latency_us} us"',
        "[world]",
        f"ranks = {ranks}",
        "[network]",
        'algorithm = "gloo_ring"',
        f"latency_us = {link.latency_us + costs.reaction_us:.3f}",
        f"bandwidth_gbit_per_s = {link.mbit / 1000 * costs.payload_share:.6f}",
        f"burst_bytes = {burst_bytes(link.mbit):.1f}",
        f"backlog_bytes = {BACKLOG_BYTES:.1f}",
        f"reduce_gbyte_per_s = {costs.add_gbyte_per_s:.4f}",
        "[compute]",
        f"optimizer_us = {workload.OPTIMIZER_US + step_us:.3f}",
    ]
    for layer in workload.LAYERS:
        lines += ["[[layer]]",
                  f"parameters = [{layer['bytes'] // 4}]",
                  f"forward_us = {layer['forward_us']:.1f}",
                  f"backward_us = {layer['backward_us']:.1f}"]
    lines += ["[train]",
              "steps = 3",  # the first has another layout and does not count
              "[[vary.linked]]",
              f'"ddp.first_bucket_cap_bytes" = {[c.first_bytes for c in caps]}',
              f'"ddp.bucket_cap_bytes" = {[c.other_bytes for c in caps]}']
    return "\n".join(lines) + "\n"


def predict(lockstep_program, text):
    """[(seconds of a step, number of buckets)], by point."""
    with tempfile.TemporaryDirectory(prefix="lockstep-timing-") as folder:
        file = os.path.join(folder, "validation.toml")
        answer = os.path.join(folder, "answer.json")
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
        done = subprocess.run([lockstep_program, "simulate", file, "--json", answer],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"lockstep simulate failed:\n{done.stdout}{done.stderr}\n{text}")
        with open(answer, encoding="utf-8") as said:
            points = json.load(said)["points"]
    return [(point["step_ms"] / 1e3, int(point["buckets"])) for point in points]
