# SPDX-License-Identifier: Apache-2.0
"""Rows of judged mutants as text, and what is to be said of all of them."""
import statistics

HEADER = (f"{'mutant':44} {'area':22} {'build':>6}  {'suite: after':>12} {'s':>6}  "
          f"{'fuzz: after':>11} {'s':>6} {'steps':>5} {'lines':>5}  killed by")


def row_text(row):
    suite, fuzz = row["suite"] or {}, row["fuzz"] or {}
    def after(part):
        if not part:
            return "-"
        return str(part["cases"]) if part["killed"] and part["cases"] else \
            "yes" if part["killed"] else "no"
    def cell(value):
        return "-" if value is None else str(value)
    by = (" | ".join(part["by"] for part in (suite, fuzz) if part and part["killed"]) or
          ("SURVIVES" if row["digest"] else "clean"))
    return (f"{row['name']:44} {row['area']:22} {row['build_seconds']:6}  {after(suite):>12} "
            f"{cell(suite.get('seconds')):>6}  {after(fuzz):>11} {cell(fuzz.get('seconds')):>6} "
            f"{cell(fuzz.get('steps')):>5} {cell(fuzz.get('lines')):>5}  {by}")


def is_killed(row):
    return any(row[part] and row[part]["killed"] for part in ("suite", "fuzz"))


def _counted(rows, part):
    rows = [row for row in rows if row[part]]
    killed = [row for row in rows if row[part]["killed"]]
    if not rows:
        return f"{part}: not run"
    text = f"{part} alone: {len(killed)} of {len(rows)} killed"
    cases = [row[part]["cases"] for row in killed if row[part]["cases"]]
    if cases:
        text += f", after {statistics.median(cases):g} cases in the median, {max(cases)} at most"
    return text


def summary_text(rows):
    """Of the mutants, without canary and null."""
    lines = [_counted(rows, "suite"), _counted(rows, "fuzz")]
    found = [row["fuzz"] for row in rows if row["fuzz"] and row["fuzz"]["killed"]]
    for key, what in (("steps", "shrink steps"), ("lines", "lines of the shrunk file")):
        values = [part[key] for part in found if part[key] is not None]
        if values:
            lines.append(f"{what}: median {statistics.median(values):g}, worst {max(values)}")
    for part in ("suite", "fuzz"):
        missed = [row["name"] for row in rows if row[part] and not row[part]["killed"]]
        if missed:
            lines.append(f"not killed by {part} alone: {', '.join(missed)}")
    survivors = [row["name"] for row in rows if not is_killed(row)]
    lines.append(f"survivors: {', '.join(survivors) or 'none'}")
    return "\n".join(lines)
