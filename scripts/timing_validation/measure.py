# SPDX-License-Identifier: Apache-2.0
"""Runs the measuring program, one process per rank, on a network."""
import json
import os
import secrets
import signal
import subprocess
import tempfile

import priority


def measure(network, job, worker_program, timeout_s=600):
    """Runs `job` (the keys of bench/timing_worker.cc but for those about meeting) on all ranks.

    Returns what rank 0 printed. Raises RuntimeError if a rank fails; all have ended then.
    """
    processes = []
    with tempfile.TemporaryDirectory(prefix="lockstep-timing-") as folder:
        meeting = os.path.join(folder, "meeting")
        os.mkdir(meeting, mode=0o700)
        path = os.path.join(folder, "job.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(dict(job, ranks=len(network.namespaces), directory=meeting,
                           token=secrets.token_hex(16), addresses=network.addresses), file)
        try:
            for rank, namespace in enumerate(network.namespaces):
                processes.append(subprocess.Popen(
                    ["ip", "netns", "exec", namespace] + priority.of_rank() +
                    [worker_program, path, str(rank)],
                    stdout=subprocess.PIPE, text=True, start_new_session=True,
                    env=dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")))
            said = [process.communicate(timeout=timeout_s)[0] for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode != 0]
    if failed:
        raise RuntimeError(f"ranks {failed} of the measurement failed (see above)")
    return json.loads(said[0])
