# SPDX-License-Identifier: Apache-2.0
"""What the scenario suite and fuzzing, each alone, say of a mutant."""
import glob
import json
import os
import re
import time

from mutation import patches

LOCKSTEP = "build/release/harness/cli/lockstep"
BUILD_TIMEOUT_S = 1800
FINDING, DEFECT = 1, 3  # exit statuses of a campaign that kept what it found


class Defect(Exception):
    """A mutant that cannot be judged; says why."""


def suite(place, mutant, options):
    """Scenarios until the first that is not as expected, or all of them with options.full."""
    report = os.path.join(place.out, "suite.json")
    command = [LOCKSTEP, "run", *options.scenarios, "--jobs", "1", "--json", report,
               "--backend", mutant.backend]
    begin = time.monotonic()
    result = place.run(command + ([] if options.full else ["--fail-fast"]), options.suite_timeout)
    row = {"seconds": round(time.monotonic() - begin, 1)}
    if result.timed_out:
        return dict(row, killed=True, by="does not end", cases=None, failed=None)
    if result.status == 2:
        raise Defect(f"lockstep run refuses its arguments: {result.output.strip()[-300:]}")
    if not os.path.exists(report):
        return dict(row, killed=True, by=f"exit status {result.status}", cases=None, failed=None)
    with open(report, encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    bad = [i for i, case in enumerate(cases) if case["verdict"] not in ("passed", "skipped")]
    if not bad:
        died = result.status != 0
        return dict(row, killed=died, by=f"exit status {result.status}" if died else "",
                    cases=len(cases), failed=0)
    first = cases[bad[0]]
    name = first["file"] + (f" [{first['name']}]" if first["name"] else "")
    return dict(row, killed=True, by=name.replace("scenarios/", "", 1), cases=bad[0] + 1,
                failed=len(bad))


def fuzz(place, mutant, options):
    """Drawn cases until the first finding, which is shrunk; options.fuzz_cases at most."""
    corpus, lines = os.path.join(place.out, "corpus"), os.path.join(place.out, "fuzz.jsonl")
    os.makedirs(corpus)
    command = [LOCKSTEP, "fuzz", "--cases", str(options.fuzz_cases), "--seed", str(options.seed),
               "--corpus", corpus, "--no-replay", "--jobs", "1", "--findings", "1",
               "--json-lines", lines, "--backend", mutant.backend]
    begin = time.monotonic()
    result = place.run(command, options.fuzz_timeout)
    row = {"seconds": round(time.monotonic() - begin, 1), "cases": cases_until_finding(lines),
           "steps": None, "lines": None}
    if result.timed_out:
        return dict(row, killed=True, by="does not end")
    if result.status == 0:
        return dict(row, killed=False, by="")
    if result.status == 2:
        raise Defect(f"lockstep fuzz refuses its arguments: {result.output.strip()[-300:]}")
    files = sorted(glob.glob(os.path.join(corpus, "*.toml")))
    if result.status not in (FINDING, DEFECT) or not files:
        return dict(row, killed=True, by=f"exit status {result.status}")
    with open(files[0], encoding="utf-8") as file:
        text = file.read()
    steps = re.search(r"shrunk in (\d+) steps", result.output)
    return dict(row, killed=True, by=os.path.basename(files[0])[:-len(".toml")],
                steps=int(steps.group(1)) if steps else None, shrunk=text,
                lines=sum(1 for line in text.splitlines()
                          if line.strip() and not line.startswith("#")))


def cases_until_finding(path):
    """Of a campaign's JSON lines: how many up to the first that shows something, else all.

    A last line that was cut off, by a campaign that was ended, counts for nothing.
    """
    count = 0
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.endswith("\n"):
                    break
                count += 1
                if json.loads(line).get("finding"):
                    break
    return count


def judge(place, mutant, options):
    """Builds the mutant and runs both. Returns a row. Errors: Defect, BadPatch, Interrupted."""
    place.reset()
    if mutant.path:
        place.take(patches.files_of(mutant))
        patches.apply(mutant, place.layer)
    begin = time.monotonic()
    built = place.run(["ninja", "-C", "build/release", "-j1", "lockstep_cli"], BUILD_TIMEOUT_S)
    if built.status != 0:
        raise Defect(f"{mutant.name} does not build:\n{built.output.strip()[-2000:]}")
    row = {"name": mutant.name, "area": mutant.area, "breaks": mutant.breaks,
           "digest": mutant.digest, "budget": budget(options), "commit": options.commit,
           "build_seconds": round(time.monotonic() - begin, 1)}
    row["suite"] = suite(place, mutant, options) if options.suite else None
    row["fuzz"] = fuzz(place, mutant, options) if options.fuzz else None
    return row


def budget(options):
    """What a result depends on besides the mutant."""
    return {"suite": options.scenarios if options.suite else None, "full": options.full,
            "fuzz": [options.fuzz_cases, options.seed] if options.fuzz else None}

