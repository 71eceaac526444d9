# SPDX-License-Identifier: Apache-2.0
"""What scripts/mutants makes of patches and of results; planting them takes an hour."""
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

from mutation import judging, patches, table  # noqa: E402

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
    return {"name": name, "area": "join", "build_seconds": 1.0,
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


if __name__ == "__main__":
    unittest.main()
