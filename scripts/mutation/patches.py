# SPDX-License-Identifier: Apache-2.0
"""The seeded bugs: files with a header of three lines over a unified diff."""
import hashlib
import os
import subprocess
from dataclasses import dataclass

KEYS = ("Breaks", "Seen", "Area")


@dataclass(frozen=True)
class Mutant:
    name: str  # "07_divided_twice"; "null" changes nothing
    path: str  # of the patch; empty for "null"
    breaks: str
    seen: str
    area: str
    digest: str  # of the diff, so that a result can be told to be of another one

    @property
    def backend(self):
        """Over which transport it can be seen."""
        return "gloo" if self.area.endswith(" gloo") else "sim"


NULL = Mutant("null", "", "nothing", "the control", "control", "")


class BadPatch(Exception):
    """A patch that cannot be used; says which and why."""


def read(path):
    """Errors: BadPatch for a header that is not there or incomplete."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    header, found, diff = text.partition("\n--- a/")
    values = dict(line.split(": ", 1) for line in header.splitlines() if ": " in line)
    missing = [key for key in KEYS if not values.get(key, "").strip()]
    if not found or missing:
        raise BadPatch(f"{os.path.basename(path)}: expected the lines {', '.join(KEYS)} and a "
                       f"unified diff, found no {', '.join(missing) or 'diff'}")
    name = os.path.basename(path)[:-len(".patch")]
    return Mutant(name, path, *(values[key].strip() for key in KEYS),
                  hashlib.sha256(diff.encode()).hexdigest()[:16])


def load(folder):
    """All mutants of a folder by name, and the canary. Errors: BadPatch."""
    mutants = [read(os.path.join(folder, name)) for name in sorted(os.listdir(folder))
               if name.endswith(".patch")]
    canaries = [mutant for mutant in mutants if mutant.name == "canary"]
    if len(canaries) != 1:
        raise BadPatch(f"{folder} has no canary.patch, which must be reported in every run")
    return [mutant for mutant in mutants if mutant.name != "canary"], canaries[0]


def files_of(mutant):
    """The sources that it changes, from the root."""
    with open(mutant.path, encoding="utf-8") as file:
        return [line[len("+++ b/"):].strip() for line in file if line.startswith("+++ b/")]


def apply(mutant, root, check=False):
    """Applies it to the sources below `root`, or only looks whether it would. Errors: BadPatch."""
    # Without a ceiling git takes a folder inside a checkout for a part of it, and then passes over
    # every file in silence.
    environment = dict(os.environ, GIT_CEILING_DIRECTORIES=os.path.dirname(root))
    done = subprocess.run(["git", "apply", *(["--check"] if check else []), mutant.path], cwd=root,
                          env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise BadPatch(f"{mutant.name} no longer applies: {done.stderr.strip()}")
