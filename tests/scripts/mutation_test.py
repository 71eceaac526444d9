# SPDX-License-Identifier: Apache-2.0
"""What scripts/mutants makes of patches and of results; planting them takes an hour."""
import argparse
import json
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

from mutation import judging, patches, table, workplace  # noqa: E402

HEADER = "Breaks: a.\nSeen: b\nArea: join\n"
DIFF = "\n--- a/one.cc\n+++ b/one.cc\n@@ -1,2 +1,2 @@\n first\n-second\n+other\n"


class Folder(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.path = self._folder.name
        self.addCleanup(self._folder.cleanup)

    def write(self, name, text):
        path = os.path.join(self.path, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path


class PatchesTest(Folder):
    def test_a_patch_says_what_it_is(self):
        mutant = patches.read(self.write("07_x.patch", HEADER + DIFF))
        self.assertEqual((mutant.name, mutant.breaks, mutant.area), ("07_x", "a.", "join"))
        self.assertEqual(patches.files_of(mutant), ["one.cc"])

    def test_a_result_is_of_the_diff_and_not_of_what_is_said_of_it(self):
        one = patches.read(self.write("1_x.patch", HEADER + DIFF))
        same = patches.read(self.write("2_x.patch", HEADER.replace("a.", "c.") + DIFF))
        other = patches.read(self.write("3_x.patch", HEADER + DIFF.replace("other", "third")))
        self.assertEqual(one.digest, same.digest)
        self.assertNotEqual(one.digest, other.digest)

    def test_a_header_with_a_line_missing_or_empty_is_refused(self):
        for header in ("", "Breaks: a.\nSeen: b\n", "Breaks: a.\nSeen: \nArea: join\n"):
            with self.assertRaises(patches.BadPatch):
                patches.read(self.write("x.patch", header + DIFF))
        with self.assertRaises(patches.BadPatch):
            patches.read(self.write("x.patch", HEADER))

    def test_there_must_be_a_canary(self):
        self.write("07_x.patch", HEADER + DIFF)
        with self.assertRaisesRegex(patches.BadPatch, "canary"):
            patches.load(self.path)
        self.write("canary.patch", HEADER + DIFF)
        mutants, canary = patches.load(self.path)
        self.assertEqual([mutant.name for mutant in mutants], ["07_x"])
        self.assertEqual(canary.name, "canary")

    def test_a_patch_that_no_longer_applies_is_seen(self):
        mutant = patches.read(self.write("07_x.patch", HEADER + DIFF))
        target = self.write("one.cc", "first\nsecond\n")
        patches.apply(mutant, self.path, check=True)
        patches.apply(mutant, self.path)
        with open(target, encoding="utf-8") as file:
            self.assertEqual(file.read(), "first\nother\n")
        with self.assertRaisesRegex(patches.BadPatch, "no longer applies"):
            patches.apply(mutant, self.path, check=True)

    def test_only_code_that_the_simulator_replaces_is_run_over_gloo(self):
        for area, backend in (("transport gloo", "gloo"), ("transport", "sim")):
            text = HEADER.replace("join", area) + DIFF
            self.assertEqual(patches.read(self.write("x.patch", text)).backend, backend)


def row(name, suite, fuzz):
    part = {"killed": True, "by": "x", "cases": 3, "seconds": 1.0, "steps": 4, "lines": 9}
    return {"name": name, "area": "join", "digest": "d", "build_seconds": 1.0,
            "suite": dict(part, killed=suite), "fuzz": dict(part, killed=fuzz)}


class TableTest(Folder):
    def test_who_is_found_by_neither_survives(self):
        rows = [row("a", True, True), row("b", True, False), row("c", False, False)]
        self.assertEqual([table.is_killed(each) for each in rows], [True, True, False])
        text = table.summary_text(rows)
        self.assertIn("suite alone: 2 of 3 killed", text)
        self.assertIn("fuzz alone: 1 of 3 killed", text)
        self.assertIn("not killed by fuzz alone: b, c", text)
        self.assertIn("survivors: c", text)
        self.assertIn("SURVIVES", table.row_text(rows[2]))

    def test_what_was_not_run_kills_nobody(self):
        alone = dict(row("a", False, True), fuzz=None)
        self.assertFalse(table.is_killed(alone))
        self.assertIn("fuzz: not run", table.summary_text([alone]))

    def test_cases_are_counted_up_to_the_first_finding(self):
        lines = '{"finding": ""}\n{"finding": "deadlock"}\n{"finding": ""}\n'
        self.assertEqual(judging.cases_until_finding(self.write("x.jsonl", lines)), 2)
        self.assertEqual(judging.cases_until_finding(os.path.join(self.path, "none")), 0)

    def test_a_line_that_was_cut_off_counts_for_nothing(self):
        lines = '{"finding": ""}\n{"find'
        self.assertEqual(judging.cases_until_finding(self.write("x.jsonl", lines)), 1)


class Place:
    """Stands in for a workplace: what a command leaves behind, and how it ends."""

    def __init__(self, out, status, files=None, output="", timed_out=False):
        self.out, self.commands = out, []
        self._files, self._result = files or {}, (status, output, timed_out)

    def run(self, command, timeout_s):
        self.commands.append(command)
        for name, text in self._files.items():
            with open(os.path.join(self.out, name), "w", encoding="utf-8") as file:
                file.write(text)
        return workplace.Result(*self._result)


OPTIONS = argparse.Namespace(fuzz_cases=50, seed=1, fuzz_timeout=1, suite_timeout=1, full=False,
                             scenarios=["scenarios"])


class JudgingTest(Folder):
    def suite(self, verdicts, status=1, area="join", **kwargs):
        cases = [{"verdict": verdict, "file": f"scenarios/{i}.toml", "name": "n=1"}
                 for i, verdict in enumerate(verdicts)]
        place = Place(self.path, status, {"suite.json": json.dumps({"cases": cases})}, **kwargs)
        mutant = patches.Mutant("x", "", "a.", "b", area, "d")
        return judging.suite(place, mutant, OPTIONS), place.commands[0]

    def fuzz(self, status, files=None, **kwargs):
        return judging.fuzz(Place(self.path, status, files, **kwargs), patches.NULL, OPTIONS)

    def test_the_first_case_that_is_not_as_expected_is_named_and_counted(self):
        row, command = self.suite(["passed", "skipped", "failed"])
        self.assertEqual((row["killed"], row["cases"], row["by"]), (True, 3, "2.toml [n=1]"))
        self.assertIn("--fail-fast", command)
        self.assertEqual(self.suite(["passed", "defect"])[0]["cases"], 2)

    def test_a_suite_that_is_as_expected_kills_nobody(self):
        row, command = self.suite(["passed", "skipped"], status=0, area="transport gloo")
        self.assertEqual((row["killed"], row["cases"]), (False, 2))
        self.assertEqual(command[command.index("--backend") + 1], "gloo")

    def test_a_program_that_does_not_end_or_dies_is_found(self):
        self.assertEqual(self.suite([], timed_out=True)[0]["by"], "does not end")
        self.assertEqual(self.fuzz(-9, timed_out=True)["by"], "does not end")
        place = Place(self.path, -11)
        os.remove(os.path.join(self.path, "suite.json"))
        self.assertEqual(judging.suite(place, patches.NULL, OPTIONS)["by"], "exit status -11")

    def test_a_finding_is_shrunk_and_counted(self):
        row = self.fuzz(1, {"corpus/deadlock-1.toml": "# found\nschema = 1\n\n[train]\n",
                            "fuzz.jsonl": '{"finding": ""}\n{"finding": "deadlock"}\n'},
                        output="found deadlock\n  shrunk in 7 steps, 20 cases judged\n")
        self.assertEqual((row["killed"], row["by"], row["cases"]), (True, "deadlock-1", 2))
        self.assertEqual((row["steps"], row["lines"]), (7, 2))

    def test_a_campaign_without_a_finding_kills_nobody(self):
        self.assertFalse(self.fuzz(0, {"fuzz.jsonl": '{"finding": ""}\n'})["killed"])

    def test_arguments_that_are_refused_are_no_finding(self):
        with self.assertRaises(judging.Defect):
            self.fuzz(2)


if __name__ == "__main__":
    unittest.main()
