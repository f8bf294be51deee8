"""Support dynamics against every printed row of "The Invisible Leash" (arXiv 2507.14843v4), and their intervals."""

import math
import subprocess
import sys

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.support import (
    METRICS,
    Dynamics,
    bootstrap_dynamics,
    cells_of,
    detection_limit,
    detection_limit_exact,
    dynamics,
    dynamics_above,
    metrics,
)

# table, row | base% policy% | SRR NDR SDS NSCR | P E S O. "." is not printed, a bare 0, 1 or 100 is exact.
PAPER = """
T1 ProRL-v1 Math | . . | .96 .00 .01 -.04 | 1355 5 56 131
T1 ProRL-v1 Non-Math | . . | .91 .03 .06 -.06 | 1045 31 107 674
T1 ProRL-v1 Overall | . . | .94 .02 .03 -.05 | 2400 36 163 805
T1 ProRL-v2 Math | . . | .96 .01 .01 -.04 | 1349 9 62 127
T1 ProRL-v2 Non-Math | . . | .90 .04 .07 -.06 | 1039 39 113 666
T1 ProRL-v2 Overall | . . | .93 .02 .04 -.05 | 2388 48 175 793
T1 Nemotron-7B Math | . . | .99 .00 .01 -.00 | 1431 5 9 102
T1 Nemotron-7B Non-Math | . . | .97 .02 .04 -.02 | 1284 23 47 503
T1 Nemotron-7B Overall | . . | .98 .01 .02 -.01 | 2715 28 56 605
T1 Skywork-7B Math | . . | .98 .00 .00 -.02 | 1406 2 34 105
T1 Skywork-7B Non-Math | . . | .96 .02 .04 -.02 | 1279 24 52 502
T1 Skywork-7B Overall | . . | .97 .01 .02 -.02 | 2685 26 86 607
T1 Nemotron-14B Math | . . | .99 .00 .01 -.01 | 1425 5 15 102
T1 Nemotron-14B Non-Math | . . | .99 .00 .01 -.01 | 993 3 8 399
T1 Nemotron-14B Overall | . . | .99 .00 .01 -.01 | 2418 8 23 501
T1 Phi4-14B Math | . . | .99 .01 .01 -.00 | 1407 8 12 120
T1 Phi4-14B Non-Math | . . | .99 .01 .01 -.00 | 1067 8 11 317
T1 Phi4-14B Overall | . . | .99 .01 .01 -.00 | 2474 16 23 437
T1 OLMo Math | . . | .88 .10 .18 -.02 | 761 83 104 599
T1 OVR-7B Math | . . | 1.00 .00 .01 -.00 | 781 3 4 516
T3 AIME24 SFT | 63.33 63.33 | .789 .211 .332 .000 | 15 4 4 7
T3 AIME24 DAPO | 63.33 66.67 | .895 .150 .257 .045 | 17 3 2 8
T3 AIME25 SFT | 50.00 63.33 | .933 .263 .411 .200 | 14 5 1 10
T3 AIME25 DAPO | 50.00 56.67 | 1.000 .118 .211 .118 | 15 2 0 13
T3 AMC23 SFT | 100 100 | 1 0 0 0 | 40 0 0 0
T3 AMC23 DAPO | 100 92.5 | .925 0 0 -.075 | 37 0 3 0
T3 MATH500 SFT | 96.4 99.0 | .996 .030 .059 .026 | 480 15 2 3
T3 MATH500 DAPO | 96.4 95.2 | .975 .013 .025 -.012 | 470 6 12 12
T3 Minerva SFT | 63.24 66.91 | .895 .154 .263 .050 | 154 28 18 72
T3 Minerva DAPO | 63.24 55.15 | .802 .080 .145 -.120 | 138 12 34 88
T3 Olympiad SFT | 78.22 81.78 | .953 .089 .162 .042 | 503 49 25 98
T3 Olympiad DAPO | 78.22 72.89 | .884 .051 .096 -.065 | 467 25 61 122
T6 AIME24 | 93.3 83.3 | .893 0 0 -.107 | 25 0 3 2
T6 AIME25 | 80.0 73.3 | .833 .091 .164 -.077 | 20 2 4 4
T6 AMC23 | 100 100 | 1 0 0 0 | 40 0 0 0
T6 MATH500 | 99.6 99.4 | .998 0 0 -.002 | 497 0 1 2
T6 Minerva | 71.7 63.6 | .887 0 0 -.113 | 173 0 22 77
T6 Olympiad | 92.7 89.3 | .958 .005 .010 -.037 | 600 3 26 46
T6 SimpleQA | 23.3 18.0 | .743 .038 .073 -.221 | 75 3 26 329
T6 LiveBench-R | 100 94.0 | .940 0 0 -.060 | 94 0 6 0
T6 LiveBench-C | 62.5 56.2 | .838 .069 .128 -.094 | 67 5 13 43
T6 LiveBench-L | 26.0 24.0 | .769 .167 .274 -.067 | 10 2 3 35
T6 SciBench | 94.1 90.5 | .946 .016 .031 -.038 | 616 10 35 31
T6 LCBv5 | 46.4 43.0 | .860 .072 .133 -.069 | 129 10 21 163
T6 LCBv6 | 43.5 42.0 | .947 .018 .036 -.034 | 54 1 3 73
T6 sum-Math | . . | .960 .0037 .0073 -.036 | 1355 5 56 131
T6 sum-Non-Math | . . | .907 .0288 .0558 -.064 | 1045 31 107 674
T6 sum-Overall | . . | .936 .0148 .0291 -.049 | 2400 36 163 805
T7 AIME24 | 93.3 93.3 | 1 0 0 0 | 28 0 0 2
T7 AIME25 | 100 100 | 1 0 0 0 | 30 0 0 0
T7 AMC23 | 100 100 | 1 0 0 0 | 40 0 0 0
T7 MATH500 | 99.8 99.8 | 1 0 0 0 | 499 0 0 1
T7 Minerva | 71.7 71.0 | .985 .005 .010 -.010 | 192 1 3 76
T7 Olympiad | 96.0 95.7 | .991 .006 .012 -.003 | 642 4 6 23
T7 SimpleQA | 38.6 35.6 | .862 .065 .121 -.073 | 144 10 23 256
T7 LiveBench-R | 100 99.0 | .990 0 0 -.010 | 99 0 1 0
T7 LiveBench-C | 85.9 85.9 | .991 .009 .018 0 | 109 1 1 17
T7 LiveBench-L | 24.0 24.0 | .833 .167 .278 0 | 10 2 2 36
T7 SciBench | 94.7 93.5 | .982 .006 .012 -.012 | 643 4 12 33
T7 LCBv5 | 62.8 62.5 | .970 .025 .048 -.005 | 197 5 6 115
T7 LCBv6 | 64.1 63.4 | .976 .012 .024 -.012 | 82 1 2 46
T8 AIME24 | 93.3 93.3 | . . . . | 28 0 0 2
T8 AIME25 | 100 100 | . . . . | 30 0 0 0
T8 AMC23 | 100 100 | . . . . | 40 0 0 0
T8 MATH500 | 99.8 99.8 | . . . . | 499 0 0 1
T8 Minerva | 71.7 71.3 | .985 .010 .020 -.005 | 192 2 3 75
T8 Olympiad | 96.0 91.4 | .952 0 0 -.048 | 617 0 31 27
T8 SimpleQA | 38.6 37.0 | .880 .081 .149 -.039 | 147 13 20 253
T8 LiveBench-R | 100 98.0 | . . . . | 98 0 2 0
T8 LiveBench-C | 85.9 85.2 | . . . . | 109 0 1 18
T8 LiveBench-L | 24.0 22.0 | .917 0 0 -.083 | 11 0 1 38
T8 SciBench | 94.7 92.8 | .974 .006 .012 -.020 | 638 4 17 33
T8 LCBv5 | 62.8 62.2 | . . . . | 196 5 7 115
T8 LCBv6 | 64.1 62.6 | . . . . | 80 2 4 45
T9 AIME24 | 96.7 93.3 | .966 . . . | 28 0 1 1
T9 AIME25 | 100 96.7 | .967 . . . | 29 0 1 0
T9 AMC23 | 100 100 | . . . . | 40 0 0 0
T9 MATH500 | 99.8 99.8 | . . . . | 499 0 0 1
T9 Minerva | 71.7 69.5 | .959 .011 .021 -.030 | 187 2 8 75
T9 Olympiad | 95.9 95.6 | .992 .005 .009 -.003 | 642 3 5 25
T9 SimpleQA | 27.0 26.8 | .983 .009 .017 -.008 | 115 1 2 315
T9 LiveBench-R | 99.0 99.0 | . . . . | 99 0 0 1
T9 LiveBench-C | 92.2 92.2 | . . . . | 118 0 0 10
T9 LiveBench-L | 46.0 44.0 | .957 . . . | 22 0 1 27
T9 SciBench | 93.1 92.6 | .992 .003 .006 -.005 | 639 2 5 46
T10 AIME24 | 96.7 96.7 | . . . . | 29 0 0 1
T10 AIME25 | 100 100 | . . . . | 30 0 0 0
T10 AMC23 | 100 100 | . . . . | 40 0 0 0
T10 MATH500 | 100 99.8 | . . . . | 499 0 1 0
T10 Minerva | 66.2 65.4 | .972 .017 .033 -.011 | 175 3 5 89
T10 Olympiad | 94.8 94.7 | .991 .008 .016 -.002 | 634 5 6 30
T10 SimpleQA | 37.9 37.4 | .970 .019 .036 -.012 | 159 3 5 266
T10 LiveBench-R | 100 100 | . . . . | 100 0 0 0
T10 LiveBench-C | 97.7 96.9 | . . . . | 124 0 1 3
T10 LiveBench-L | 74.0 74.0 | . . . . | 37 0 0 13
T10 SciBench | 94.2 94.2 | .992 .008 .015 0 | 647 5 5 35
T11 MathVista | 49.1 49.1 | .998 .002 .004 0 | 490 1 1 508
T11 MathVision | 96.7 96.4 | .990 .007 .014 -.003 | 291 2 3 8
T12 AIME24 | 20.0 16.67 | .833 0 0 -.167 | 5 0 1 24
T12 AIME25 | 23.33 20.0 | .571 .333 .421 -.111 | 4 2 3 21
T12 AMC23 | 85.0 77.5 | .912 0 0 -.088 | 31 0 3 6
T12 MATH500 | 77.8 76.2 | .920 .060 .113 -.019 | 358 23 31 88
T12 Minerva | 33.82 32.35 | .837 .125 .218 -.039 | 77 11 15 169
T12 Olympiad | 49.93 49.33 | .849 .141 .242 -.010 | 286 47 51 291
T4 AIME24@30 | 83.33 80.00 | .960 . . -.040 | 24 0 1 5
T4 AIME24@60 | 83.33 80.00 | . . . . | 24 0 1 5
T4 AIME24@90 | 83.33 83.33 | . . . . | 25 0 0 5
T4 AIME24@120 | 83.33 80.00 | . . . . | 24 0 1 5
T4 AIME24@150 | 83.33 80.00 | . . . . | 24 0 1 5
T4 AIME24@180 | 83.33 83.33 | . . . . | 25 0 0 5
T4 AIME24@210 | 83.33 76.67 | .920 . . -.080 | 23 0 2 5
T4 AIME24@240 | 83.33 73.33 | .880 . . -.120 | 22 0 3 5
T4 AIME24@270 | 83.33 73.33 | . . . . | 22 0 3 5
T4 AIME24@300 | 83.33 73.33 | . . . . | 22 0 3 5
T4 AIME25@30 | 70.00 70.00 | .905 . . .000 | 19 2 2 7
T4 AIME25@60 | 70.00 73.33 | . . . .042 | 19 3 2 6
T4 AIME25@90 | 70.00 70.00 | . . . . | 19 2 2 7
T4 AIME25@120 | 70.00 73.33 | . . . . | 19 3 2 6
T4 AIME25@150 | 70.00 73.33 | . . . . | 19 3 2 6
T4 AIME25@180 | 70.00 63.33 | . . . -.095 | 19 0 2 9
T4 AIME25@210 | 70.00 66.67 | . . . -.045 | 19 1 2 8
T4 AIME25@240 | 70.00 66.67 | . . . . | 19 1 2 8
T4 AIME25@270 | 70.00 63.33 | . . . . | 19 0 2 9
T4 AIME25@300 | 70.00 66.67 | .864 . . -.042 | 18 2 3 7
T4 AMC23@all | 97.50 97.50 | . . . . | 39 0 0 1
T4 MATH500@30 | 99.20 98.80 | . . . . | 494 0 2 4
T4 MATH500@60 | 99.20 98.80 | . . . . | 494 0 2 4
T4 MATH500@90 | 99.20 99.20 | . . . . | 495 1 1 3
T4 MATH500@120 | 99.20 99.00 | . . . . | 494 1 2 3
T4 MATH500@150 | 99.20 98.80 | . . . . | 494 0 2 4
T4 MATH500@180 | 99.20 99.00 | . . . . | 495 0 1 4
T4 MATH500@210 | 99.20 98.80 | . . . . | 493 1 3 3
T4 MATH500@240 | 99.20 98.60 | . . . . | 492 1 4 3
T4 MATH500@270 | 99.20 98.40 | . . . . | 492 0 4 4
T4 MATH500@300 | 99.20 97.80 | .984 . . -.014 | 488 1 8 3
T4 Minerva@30 | 62.50 62.13 | .935 . . -.006 | 159 10 11 92
T4 Minerva@60 | 62.50 59.93 | .929 . . -.040 | 158 5 12 97
T4 Minerva@90 | 62.50 61.76 | .924 . . -.011 | 157 11 13 91
T4 Minerva@120 | 62.50 62.87 | .953 . . .006 | 162 9 8 93
T4 Minerva@150 | 62.50 62.50 | .947 . . .000 | 161 9 9 93
T4 Minerva@180 | 62.50 59.56 | .906 . . -.045 | 154 8 16 94
T4 Minerva@210 | 62.50 60.29 | .924 . . -.034 | 157 7 13 95
T4 Minerva@240 | 62.50 61.40 | .941 . . -.017 | 160 7 10 95
T4 Minerva@270 | 62.50 59.19 | .906 . . -.051 | 154 7 16 95
T4 Minerva@300 | 62.50 58.46 | .912 . . -.063 | 155 4 15 98
T4 Olympiad@30 | 88.00 86.67 | .963 . . -.015 | 572 13 22 68
T4 Olympiad@60 | 88.00 86.81 | .960 . . -.013 | 570 16 24 65
T4 Olympiad@90 | 88.00 86.07 | .961 . . -.022 | 571 10 23 71
T4 Olympiad@120 | 88.00 86.52 | .961 . . -.016 | 571 13 23 68
T4 Olympiad@150 | 88.00 85.48 | .955 . . -.028 | 567 10 27 71
T4 Olympiad@180 | 88.00 84.00 | .944 . . -.045 | 561 6 33 75
T4 Olympiad@210 | 88.00 82.81 | .926 . . -.058 | 550 9 44 72
T4 Olympiad@240 | 88.00 82.81 | .931 . . -.058 | 553 6 41 75
T4 Olympiad@270 | 88.00 81.33 | .912 . . -.075 | 542 7 52 74
T4 Olympiad@300 | 88.00 79.70 | .897 . . -.093 | 533 5 61 76
"""

ROWS = PAPER.strip().splitlines()

# Printed digits that do not follow from the row's own counts, and what the counts give. Those of Table 1 were rounded
# twice (.0148 -> .015 -> .02). The last row's metrics belong to (19, 2, 3), one problem more than its counts and its
# pass rate say.
MISPRINTS = {
    ("T1 ProRL-v1 Overall", "ndr"): ".0148",
    ("T1 Nemotron-7B Non-Math", "srr"): ".9647",
    ("T1 Nemotron-7B Non-Math", "sds"): ".0346",
    ("T1 Nemotron-14B Non-Math", "nscr"): "-.0050",
    ("T1 OVR-7B Math", "srr"): ".9949",
    ("T4 AIME25@300", "srr"): ".8571",
    ("T4 AIME25@300", "nscr"): "-.0435",
}

MATH = ("AIME24", "AIME25", "AMC23", "MATH500", "Minerva", "Olympiad", "MathVista", "MathVision")
AGGREGATED = {
    "T6": "ProRL-v1", "T7": "Nemotron-7B", "T8": "Skywork-7B", "T9": "Nemotron-14B", "T10": "Phi4-14B", "T11": "OVR-7B",
    "T12": "OLMo",
}  # fmt: skip


def parse(line: str) -> tuple[str, dict[str, str], Dynamics]:
    name, rates, printed, counts = (part.strip() for part in line.split("|"))
    p, e, s, o = (int(c) for c in counts.split())
    columns = dict(zip(["base", "policy", *METRICS], rates.split() + printed.split(), strict=True))
    return name, {k: v for k, v in columns.items() if v != "."}, Dynamics(p, s, e, o)


def tolerance(printed: str) -> float:
    """Half of the last printed digit; a bare whole number is exact."""
    return 0.5 * 10 ** -len(printed.split(".")[1]) + 1e-9 if "." in printed else 1e-12


def reproduces(value: float, printed: str) -> bool:
    return abs(value - float(printed)) <= tolerance(printed)


@pytest.mark.parametrize("line", ROWS, ids=[line.split("|")[0].strip() for line in ROWS])
def test_every_printed_row_of_the_paper_follows_from_its_counts(line: str) -> None:
    name, printed, table = parse(line)
    reached = {"base": table.preserved + table.shrunk, "policy": table.preserved + table.expanded}
    values = {side: 100 * count / table.total for side, count in reached.items()}
    values |= {metric: getattr(table, metric) for metric in METRICS}
    for column, text in printed.items():
        correct = MISPRINTS.get((name, column))
        assert reproduces(values[column], text) == (correct is None), f"{column}: printed {text}, got {values[column]}"
        if correct is not None:
            assert reproduces(values[column], correct)


def test_every_listed_misprint_is_a_printed_cell() -> None:
    printed = {(name, column) for name, columns, _ in map(parse, ROWS) for column in columns}
    assert set(MISPRINTS) <= printed


@pytest.mark.parametrize("table", AGGREGATED)
def test_the_aggregates_of_table_1_are_the_sums_of_the_per_benchmark_tables(table: str) -> None:
    sums = {"Math": np.zeros(4, int), "Non-Math": np.zeros(4, int)}
    aggregates = {}
    for name, _, d in map(parse, ROWS):
        counts = np.array([d.preserved, d.shrunk, d.expanded, d.out])
        if name.startswith(f"{table} ") and "sum-" not in name:
            sums["Math" if name.split()[1] in MATH else "Non-Math"] += counts
        if name.startswith(f"T1 {AGGREGATED[table]} "):
            aggregates[name.split()[-1]] = counts
    for domain, counts in aggregates.items():
        expected = sums[domain] if domain != "Overall" else sums["Math"] + sums["Non-Math"]
        assert counts.tolist() == expected.tolist(), domain


def test_dynamics_counts_units_by_hits_on_each_side() -> None:
    base, policy = [3, 1, 0, 0, 7, 4], [1, 0, 2, 0, 5, 9]
    assert dynamics(base, policy) == Dynamics(preserved=3, shrunk=1, expanded=1, out=1)
    assert dynamics(base, policy, threshold=5) == Dynamics(preserved=1, shrunk=0, expanded=1, out=4)


def test_support_is_unchanged_when_policy_is_the_base() -> None:
    hits = [0, 1, 5, 0, 2]
    table = dynamics(hits, hits)
    assert (table.srr, table.ndr, table.sds, table.nscr, table.total) == (1.0, 0.0, 0.0, 0.0, 5)


def test_what_is_undefined_is_nan_and_what_is_zero_is_zero() -> None:
    nothing = dynamics([], [])
    assert nothing.total == 0
    assert all(math.isnan(getattr(nothing, name)) for name in METRICS)
    assert math.isnan(Dynamics(0, 0, 3, 1).srr)
    assert Dynamics(0, 0, 3, 1).ndr == 1.0
    assert math.isnan(Dynamics(0, 3, 0, 1).ndr)
    assert math.isnan(Dynamics(0, 3, 0, 1).sds)
    assert Dynamics(0, 2, 3, 1).sds == 0.0
    assert math.isnan(Dynamics(0, 0, 0, 9).nscr)


def test_sds_is_the_harmonic_mean_of_srr_and_ndr() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 500, size=(100, 4))
    values = metrics(counts)
    assert np.allclose(values["sds"], 2 / (1 / values["srr"] + 1 / values["ndr"]), rtol=1e-14)


def test_hits_that_are_not_counts_are_refused() -> None:
    cases: list[tuple[list, list]] = [([1, 2], [1]), ([-1], [0]), ([0.5], [0]), ([[1]], [[1]])]
    for base, policy in cases:
        with pytest.raises(ConfigError):
            dynamics(base, policy)
    with pytest.raises(ConfigError):
        dynamics([1], [1], threshold=0)


@pytest.mark.parametrize(("k", "printed"), [(256, "1.17e-2"), (1024, "2.93e-3"), (8192, "3.66e-4"), (16384, "1.83e-4")])
def test_detection_limit_is_the_papers_bound(k: int, printed: str) -> None:
    assert f"{detection_limit(k):.2e}".replace("e-0", "e-") == printed
    assert detection_limit_exact(k) == pytest.approx(1 - 0.05 ** (1 / k), rel=1e-10)
    assert detection_limit_exact(k) < detection_limit(k)


@pytest.mark.parametrize("hits", [0, 1, 4])
def test_exact_detection_limit_is_where_so_few_hits_become_unlikely(hits: int) -> None:
    p = detection_limit_exact(200, 0.9, hits)
    tail = sum(math.comb(200, i) * p**i * (1 - p) ** (200 - i) for i in range(hits + 1))
    assert tail == pytest.approx(0.1, rel=1e-9)
    assert detection_limit_exact(7, hits=7) == 1.0


def test_dynamics_above_eps_compares_rates_not_hits() -> None:
    base, policy, n_base, n_policy = [3, 3, 0], [30, 31, 1], 10, 100
    assert dynamics_above(base, policy, n_base, n_policy, eps=0.0) == Dynamics(2, 0, 1, 0)
    assert dynamics_above(base, policy, n_base, n_policy, eps=0.3) == Dynamics(0, 0, 1, 2)
    with pytest.raises(ConfigError):
        dynamics_above([3], [1], 2, 2, eps=0.1)


def test_rates_above_eps_meet_the_hit_thresholds() -> None:
    rng = np.random.default_rng(1)
    base, policy = rng.binomial(64, 0.05, 200), rng.binomial(64, 0.03, 200)
    curve = [dynamics_above(base, policy, 64, 64, eps) for eps in (0.0, 4.5 / 64, 1.0)]
    assert curve[0] == dynamics(base, policy, 1)
    assert curve[1] == dynamics(base, policy, 5)
    assert curve[2] == Dynamics(0, 0, 0, 200)


def hits_of(cell_u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.isin(cell_u, [0, 1]).astype(int), np.isin(cell_u, [0, 2]).astype(int)


def test_bootstrap_is_reproducible_paired_and_holds_its_value() -> None:
    cell_u = np.repeat([0, 1, 2, 3], [60, 12, 5, 20])
    base, policy = hits_of(cell_u)
    one, two = (bootstrap_dynamics(cells_of(base, policy), rng=np.random.default_rng(5)) for _ in range(2))
    assert one == two
    table = dynamics(base, policy)
    for name, estimate in one.items():
        assert estimate.value == getattr(table, name)
        assert estimate.low < estimate.value < estimate.high
        assert estimate.n == 97


def test_bootstrap_does_not_call_a_count_of_zero_certain() -> None:
    estimates = bootstrap_dynamics(cells_of([1] * 30, [1] * 30), rng=np.random.default_rng(0))
    expanded, srr = estimates["expanded"], estimates["srr"]
    assert expanded.low == 0.0
    assert 1.0 < expanded.high < 4.0  # the rule of three says 3 of 30
    assert srr.high == 1.0
    assert 0.87 < srr.low < 0.95  # Jeffreys for 30 of 30: 0.92


def test_bootstrap_without_units_is_nan() -> None:
    assert all(
        math.isnan(e.value) and e.n == 0
        for e in bootstrap_dynamics(cells_of([], []), rng=np.random.default_rng(0)).values()
    )


def test_bootstrap_resamples_problems_so_copies_of_a_unit_add_nothing() -> None:
    base, policy = hits_of(np.repeat([0, 1, 2, 3], [30, 6, 3, 10]))
    alone = bootstrap_dynamics(cells_of(base, policy), rng=np.random.default_rng(0), resamples=20_000)
    copied = bootstrap_dynamics(
        cells_of(np.repeat(base, 7), np.repeat(policy, 7)),
        np.repeat(np.arange(49), 7),
        rng=np.random.default_rng(1),
        resamples=20_000,
    )
    for name in METRICS:
        assert copied[name].low == pytest.approx(alone[name].low, abs=0.01)
        assert copied[name].high == pytest.approx(alone[name].high, abs=0.01)
    assert copied["shrunk"].high == pytest.approx(7 * alone["shrunk"].high, rel=0.03)


@pytest.mark.parametrize(
    ("chances", "n"),
    [((0.60, 0.10, 0.05, 0.25), 272), ((0.70, 0.10, 0.05, 0.15), 30), ((0.876, 0.036, 0.004, 0.084), 1547)],
)
def test_bootstrap_covers_the_truth_as_often_as_it_says(chances: tuple[float, ...], n: int) -> None:
    rng = np.random.default_rng(6)
    truth = {name: n * c for name, c in zip(("preserved", "shrunk", "expanded", "out"), chances, strict=True)}
    truth |= {name: float(value) for name, value in metrics(chances).items()}
    trials = 500
    covered = dict.fromkeys(truth, 0)
    for _ in range(trials):
        estimates = bootstrap_dynamics(cells_of(*hits_of(rng.choice(4, size=n, p=chances))), rng=rng, resamples=600)
        for name, value in truth.items():
            covered[name] += estimates[name].low <= value <= estimates[name].high
    assert all(0.91 <= count / trials <= 0.99 for count in covered.values()), covered


def test_bootstrap_covers_when_units_of_a_problem_move_together_and_would_not_if_they_were_resampled() -> None:
    rng = np.random.default_rng(7)

    def problems(n: int) -> tuple[np.ndarray, np.ndarray]:
        """Cell chances of each problem, and its number of units, larger where the base is strong."""
        chances = rng.dirichlet([2.0, 0.5, 0.3, 1.2], size=n)
        return chances, 1 + rng.poisson(1 + 8 * chances[:, 0])

    chances, units = problems(200_000)
    truth = {name: float(value) for name, value in metrics((chances * units[:, None]).sum(axis=0)).items()}
    trials, n = 300, 80
    clustered, unclustered = dict.fromkeys(METRICS, 0), dict.fromkeys(METRICS, 0)
    for _ in range(trials):
        chances, units = problems(n)
        problem_u = np.repeat(np.arange(n), units)
        cell_u = (rng.random(problem_u.size)[:, None] > np.cumsum(chances, axis=1)[problem_u, :3]).sum(axis=1)
        base, policy = hits_of(cell_u)
        for covered, clusters in ((clustered, problem_u), (unclustered, None)):
            estimates = bootstrap_dynamics(cells_of(base, policy), clusters, rng=rng, resamples=600)
            for name in METRICS:
                covered[name] += estimates[name].low <= truth[name] <= estimates[name].high
    assert all(0.91 <= count / trials <= 0.99 for count in clustered.values()), clustered
    assert unclustered["srr"] / trials < 0.9


def test_statistics_import_without_torch_pandas_or_scipy() -> None:
    modules = ["intervals", "support", "noise", "passk", "entropy", "stopping", "posterior"]
    code = "import sys; import offleash.eval; " + "; ".join(f"import offleash.eval.stats.{m}" for m in modules)
    code += "; print([m for m in ('torch', 'pandas', 'scipy', 'pyarrow', 'transformers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
