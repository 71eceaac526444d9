# SPDX-License-Identifier: Apache-2.0
"""Real-time priority, so that other work on the machine hardly disturbs what is measured."""
import functools
import subprocess

# Round robin for the ranks, since Gloo's event threads spin while a lock is taken, and would keep
# its holder from ever letting it go. The relay waits for packets only and goes before them.
_RANK = ("chrt", "-r", "5")
_RELAY = ("chrt", "-f", "50")


@functools.lru_cache(maxsize=None)
def _if_allowed(prefix):
    allowed = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    return list(prefix) if allowed else []


def of_rank():
    """What to put before a rank's command; nothing where real-time priority is not allowed."""
    return _if_allowed(_RANK)


def of_relay():
    """The same for the relay."""
    return _if_allowed(_RELAY)
