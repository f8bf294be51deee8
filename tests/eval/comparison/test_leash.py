"""A comparison holds the policy against the reweighted base, of units and of problems, and the report says so first."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.comparison.result import PolicyResult
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem
from offleash.eval.report.tables import sections
from offleash.eval.report.words import LEASH, summary
from offleash.eval.sampling import Plan
from offleash.eval.stats.leash.pools import pool_line
from offleash.eval.stats.support import metrics

FAST: dict[str, Any] = {"resamples": 100, "examples": 0}


def made(path: Path, base: list[int], policy: list[int], n: tuple[int, int] = (64, 64), **changes: Any) -> PolicyResult:
    problems = [Problem(f"p{i}", f"{i} + {i} =", str(2 * i)) for i in range(len(base))]
    make_pool(path / "b", base, n[0], problems, **changes)
    make_pool(path / "p", policy, n[1], problems, **changes)
    comparison = compare(path / "b", path / "p", **FAST)
    return comparison.policies[0]


def test_the_line_is_that_of_the_base_pool_at_the_policy_s_pass_at_1(tmp_path: Path) -> None:
    base, policy = [40, 20, 10, 5, 2, 1, 1, 0, 0, 0], [64, 50, 40, 20, 10, 0, 3, 4, 0, 0]
    result = made(tmp_path, base, policy)
    leash, scope = result.leash, result.overall
    assert leash is not None
    line = pool_line(base, 64, range(10), np.sum(policy) / 640, ks=[1, 64])
    level = leash.units
    assert level is leash.problem_level  # a problem is one unit
    assert list(level.cells.values()) == pytest.approx(line.cells, abs=0.3)
    assert level.against.line.value == pytest.approx(metrics(list(level.cells.values()))["nscr"])
    assert level.against.nscr.value == pytest.approx(scope.units.any_hit.estimates["nscr"].value)
    assert level.against.above.value == pytest.approx(level.against.nscr.value - level.against.line.value)
    assert leash.pass_at_k[0] == pytest.approx(np.sum(policy) / 640, abs=1e-9)
    assert leash.pass_at_k[-1] == pytest.approx(line.pass_at_k[64], abs=0.02)


def test_units_and_problems_have_lines_of_their_own(tmp_path: Path) -> None:
    problems = [Problem(f"p{i}", f"{i} + {i} =", str(2 * i)) for i in range(6)]
    listed: list[tuple[str, ...] | None] = [("a", "b")] * 6  # nobody gives b
    make_pool(tmp_path / "b", [20, 10, 5, 2, 1, 0], 64, problems, listed)
    make_pool(tmp_path / "p", [60, 40, 20, 8, 4, 2], 64, problems, listed)
    leash = compare(tmp_path / "b", tmp_path / "p", **FAST).policies[0].leash
    assert leash is not None
    assert sum(leash.units.cells.values()) == pytest.approx(12)
    assert sum(leash.problem_level.cells.values()) == pytest.approx(6)
    assert leash.units.against.nscr.value == leash.problem_level.against.nscr.value == pytest.approx(1 / 6)


def test_a_budget_beyond_the_base_s_draws_has_no_line(tmp_path: Path) -> None:
    leash = made(tmp_path, [8, 2, 0, 1], [60, 30, 0, 9], (16, 64)).leash
    assert leash is not None
    assert [math.isnan(value) for value in leash.pass_at_k] == [False] * 5 + [True] * 2  # 1 to 16, then 32 and 64


def test_lost_problems_shrink_and_the_first_sentence_says_so(tmp_path: Path) -> None:
    result = made(tmp_path, [30] * 20 + [8] * 20, [60] * 20 + [0] * 20)
    assert result.leash is not None
    assert result.leash.units.word == "shrinks"
    first, *_ = summary(result)
    assert first.startswith("Support shrinks: NSCR is -.500")
    assert LEASH in first


def test_new_problems_beyond_what_reweighting_reaches_expand(tmp_path: Path) -> None:
    result = made(tmp_path, [100] * 30 + [0] * 30, [25] * 30 + [8] * 30, (256, 64))
    assert result.leash is not None
    assert result.leash.units.word == "expands"


def test_an_adaptive_plan_has_no_line_and_its_report_no_table(tmp_path: Path) -> None:
    problems = [Problem(f"p{i}", f"{i} + {i} =", str(2 * i)) for i in range(3)]
    for name in ("b", "p"):
        make_pool(tmp_path / name, [0, 0, 0], 8, problems, plan=Plan(successes=2))
    comparison = compare(tmp_path / "b", tmp_path / "p", **FAST)
    assert comparison.policies[0].leash is None
    (section,) = sections(comparison)
    assert not any(LEASH in text for text in section.lead)
    assert "leash" not in [table.name for table in section.tables]
