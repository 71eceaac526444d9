# SPDX-License-Identifier: Apache-2.0
"""Where a mutant is built and run: the checkout's own path, over which a scratch copy lies.

A build tree holds absolute paths, so the copy is mounted where the checkout is, in a mount
namespace that only the command sees. One copy serves all workers from below; what a mutant changes
lies in a layer above it, which is thrown away with the mutant. So every build starts from what was
there, and nothing is rebuilt but what the patch touches.
"""
import os
import shutil
import signal
import subprocess
import threading

# Objects and programs of tests and benchmarks; no mutant is judged by them.
_LEFT_OUT_BYTES = 1 << 16

_MOUNT = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/tree" &&
mount --bind "$2/tree" "$3" && cd "$3" && shift 3 && exec "$@"
"""


class Unavailable(Exception):
    """This machine cannot do it; says why."""


class Interrupted(Exception):
    """Another thread has been told to stop."""


class Result:
    def __init__(self, status, output, timed_out):
        self.status, self.output, self.timed_out = status, output, timed_out


def copy_checkout(root, target):
    """The files of the project and build/release, with their times, below `target`.

    Errors: Unavailable if this is no git checkout.
    """
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=root, capture_output=True)
    if listed.returncode != 0:
        raise Unavailable(f"{root}: git cannot list its files: {listed.stderr.decode().strip()}")
    for name in listed.stdout.decode().split("\0"):
        if name and os.path.lexists(os.path.join(root, name)):
            os.makedirs(os.path.join(target, os.path.dirname(name)), exist_ok=True)
            shutil.copy2(os.path.join(root, name), os.path.join(target, name),
                         follow_symlinks=False)
    build = os.path.join("build", "release")
    for folder, _, names in os.walk(os.path.join(root, build)):
        inside = os.path.relpath(folder, os.path.join(root, build)).split(os.sep)[0]
        there = os.path.join(target, os.path.relpath(folder, root))
        os.makedirs(there, exist_ok=True)
        for name in names:
            path = os.path.join(folder, name)
            if inside not in ("tests", "bench") or os.path.getsize(path) < _LEFT_OUT_BYTES:
                shutil.copy2(path, os.path.join(there, name), follow_symlinks=False)


class Workplace:
    """One worker's layer over the copy; `reset` makes it as the copy again."""

    def __init__(self, root, copy, folder, stop):
        self._root, self._copy, self._folder, self._stop = root, copy, folder, stop
        self._process = None
        self._lock = threading.RLock()  # a signal may come while it is held
        self.reset()

    def reset(self):
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("upper", "work", "tree", "out"):
            os.makedirs(os.path.join(self._folder, name))

    @property
    def layer(self):
        """What differs from the copy; only to be touched while nothing runs."""
        return os.path.join(self._folder, "upper")

    def take(self, names):
        """Copies these files of the copy into the layer, to be changed there."""
        for name in names:
            os.makedirs(os.path.join(self.layer, os.path.dirname(name)), exist_ok=True)
            shutil.copy2(os.path.join(self._copy, name), os.path.join(self.layer, name))

    @property
    def out(self):
        """A folder outside the tree, for reports."""
        return os.path.join(self._folder, "out")

    def run(self, command, timeout_s):
        """The command in the tree; its whole process group is gone when this returns.

        Errors: Interrupted; Unavailable if the tree cannot be mounted.
        """
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        with self._lock:
            if self._stop.is_set():
                raise Interrupted
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "--pid", "--fork",
                 "--mount-proc", "--kill-child", "sh", "-c", _MOUNT, "mount", self._copy,
                 self._folder, self._root, *command],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                text=True, errors="replace", env=environment, start_new_session=True)
        process, timed_out = self._process, False
        if self._stop.is_set():
            self.kill()
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            self.kill()
            output, _ = process.communicate()
        if self._stop.is_set():
            raise Interrupted
        return Result(process.returncode, output, timed_out)

    def kill(self):
        """Ends what runs, if anything does; all of it, since it has a process namespace."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                try:
                    os.killpg(self._process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


def check_machine():
    """Errors: Unavailable."""
    missing = [name for name in ("unshare", "mount", "git", "ninja") if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"{', '.join(missing)} not found; packages util-linux, git, ninja-build")
    if os.geteuid() != 0:
        raise Unavailable("mounting a scratch copy over the checkout needs root")
