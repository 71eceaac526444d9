# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured: rows, errors, the choice of a cap, and how they are written."""
import collections
import csv
import statistics

MEDIAN_ERROR_MAX = 0.05
WORST_ERROR_MAX = 0.10
REGRET_MAX = 0.03

Row = collections.namedtuple("Row", [
    "ranks", "mbit", "latency_us", "first_bytes", "other_bytes", "buckets", "predicted_ms",
    "measured_ms", "fastest_ms", "slowest_ms", "error"])

# regret: what the cap that was predicted to be best costs over the best that was measured.
Choice = collections.namedtuple("Choice", [
    "ranks", "mbit", "latency_us", "predicted_best", "measured_best", "regret"])

Verdict = collections.namedtuple("Verdict", ["median_error", "worst_error", "worst_regret", "met"])


def make_row(ranks, link, caps, buckets, predicted_s, measured_s):
    """`measured_s`: seconds of every step that was timed."""
    median_s = statistics.median(measured_s)
    return Row(ranks, link.mbit, link.latency_us, caps.first_bytes, caps.other_bytes, buckets,
               predicted_s * 1e3, median_s * 1e3, min(measured_s) * 1e3, max(measured_s) * 1e3,
               predicted_s / median_s - 1)


def _caps(row):
    return f"{row.first_bytes // 1024}/{row.other_bytes // 1024}"


def choices(rows):
    """One per world size and link, in the order of the rows."""
    links = collections.OrderedDict()
    for row in rows:
        links.setdefault((row.ranks, row.mbit, row.latency_us), []).append(row)
    result = []
    for link, of_link in links.items():
        predicted = min(of_link, key=lambda row: row.predicted_ms)
        measured = min(of_link, key=lambda row: row.measured_ms)
        result.append(Choice(*link, _caps(predicted), _caps(measured),
                             predicted.measured_ms / measured.measured_ms - 1))
    return result


def judge(rows):
    errors = [abs(row.error) for row in rows]
    regret = max(choice.regret for choice in choices(rows))
    median, worst = statistics.median(errors), max(errors)
    met = median <= MEDIAN_ERROR_MAX and worst <= WORST_ERROR_MAX and regret <= REGRET_MAX
    return Verdict(median, worst, regret, met)


HEADER = (f"{'ranks':>5} {'Mbit/s':>6} {'us':>5} {'caps, KiB':>10} {'buckets':>7} "
          f"{'predicted':>9} {'measured':>9} {'(fastest .. slowest)':>20} {'error':>7}")


def row_text(row):
    spread = f"({row.fastest_ms:.1f} .. {row.slowest_ms:.1f})"
    return (f"{row.ranks:>5} {row.mbit:>6} {row.latency_us:>5} {_caps(row):>10} {row.buckets:>7} "
            f"{row.predicted_ms:>9.1f} {row.measured_ms:>9.1f} {spread:>20} {row.error:>+7.1%}")


def summary_text(rows):
    lines = ["", "the best caps of each link:"]
    for choice in choices(rows):
        lines.append(f"{choice.ranks:>5} ranks {choice.mbit:>4} Mbit/s {choice.latency_us:>5} us: "
                     f"predicted {choice.predicted_best}, measured {choice.measured_best}; the "
                     f"predicted ones cost {choice.regret:.1%} more")
    verdict = judge(rows)
    lines += ["", f"{len(rows)} rows: median error {verdict.median_error:.1%} (at most "
              f"{MEDIAN_ERROR_MAX:.0%}), worst {verdict.worst_error:.1%} (at most "
              f"{WORST_ERROR_MAX:.0%}), predicted best caps within {verdict.worst_regret:.1%} of "
              f"the measured best (at most {REGRET_MAX:.0%}): "
              f"{'as targeted' if verdict.met else 'NOT as targeted'}"]
    return "\n".join(lines)


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(rows)


def as_json(rows):
    return {"rows": [row._asdict() for row in rows],
            "choices": [choice._asdict() for choice in choices(rows)],
            "verdict": judge(rows)._asdict()}
