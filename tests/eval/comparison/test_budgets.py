"""Pools of unequal budgets, unfinished ones and those that stop early are compared at the draws that both have."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offleash.eval.comparison.result import Scope
from offleash.eval.convert.importer import import_samples
from offleash.eval.errors import PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool, make_spec
from offleash.eval.problem import Problem
from offleash.eval.report.record import json_report
from offleash.eval.sampling import Plan
from offleash.eval.stats.entropy import answer_entropy, answer_entropy_corrected
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.stopping import stopped_noise_test, stopped_pass_at_k
from offleash.eval.stats.subsets import expected_cells
from offleash.eval.stats.support import CELLS, METRICS, dynamics, metrics
from tests.eval.comparison.random_pools import cells, compared, make_problems, one, random_pool, random_rows


def short_and_long(tmp_path: Path, longer: str) -> Scope:
    """Eight draws a problem against sixteen."""
    problems = make_problems(8)
    for seed, name in enumerate(("base", "policy")):
        random_pool(tmp_path / name, problems, 16 if longer == name else 8, seed)
    comparison = compared(tmp_path / "base", tmp_path / "policy")
    assert "what 8 of them show on average" in comparison.notes[0]
    return one(comparison).overall


@pytest.mark.parametrize("longer", ["base", "policy"])
def test_unequal_budgets_are_compared_as_expected_over_subsets(tmp_path: Path, longer: str) -> None:
    scope = short_and_long(tmp_path, longer)
    hits = {name: Pool.open(tmp_path / name).hits() for name in ("base", "policy")}
    n = {name: int(of_pool.n_p[0]) for name, of_pool in hits.items()}
    for support in (scope.problem_level.any_hit, scope.problem_level.stable):
        assert support is not None
        expected = expected_cells(
            hits["base"].correct_p, hits["policy"].correct_p, n["base"], n["policy"], 8, support.threshold
        ).sum(axis=0)
        assert [support.estimates[cell].value for cell in CELLS] == pytest.approx(expected.tolist())
        assert [support.estimates[m].value for m in METRICS] == pytest.approx(
            [float(metrics(expected)[m]) for m in METRICS]
        )
        assert any(value % 1 for value in expected)
    assert (scope.k_min, scope.n_min, scope.rows_k, scope.curves.ks) == (8, 8, 8, (1, 2, 4, 8, 16))
    curve, other = scope.curves.base, scope.curves.policy
    if longer == "policy":
        curve, other = other, curve
    long = hits[longer]
    assert [e.value for e in curve] == pytest.approx(pass_at_k(long.correct_p, long.n_p, scope.curves.ks).mean(axis=0))
    assert math.isnan(other[-1].value)
    assert all(lead.since.value <= 8 for lead in scope.curves.leads)


def test_of_unequal_budgets_only_what_depends_on_their_number_is_at_the_smaller_one(tmp_path: Path) -> None:
    scope = short_and_long(tmp_path, "base")
    rows = Pool.open(tmp_path / "base").read(["answer", "correct", "tokens", "status"]).to_pydict()
    assert scope.rows["avg"].base.value == pytest.approx(np.mean(rows["correct"]))
    assert scope.rows["tokens"].base.value == pytest.approx(np.mean(rows["tokens"]))
    assert scope.rows["no_answer"].base.value == pytest.approx(rows["status"].count("no_answer") / 128)
    plain, corrected, majority = [], [], []
    rng = np.random.default_rng(0)
    for p in range(8):
        answers, gold = rows["answer"][16 * p : 16 * p + 16], str(2 * p)
        corrected.append(answer_entropy_corrected(list(Counter(answers).values())))
        for _ in range(2000):
            counts = Counter(answers[i] for i in rng.permutation(16)[:8])
            plain.append(answer_entropy(list(counts.values())))
            counts.pop(None, None)
            best = [answer for answer, times in counts.items() if times == max(counts.values())]
            majority.append((gold in best) / max(1, len(best)))
    assert scope.rows["answer_entropy_corrected"].base.value == pytest.approx(np.mean(corrected))
    assert scope.rows["answer_entropy"].base.value == pytest.approx(np.mean(plain), abs=0.005)
    assert scope.rows["majority"].base.value == pytest.approx(np.mean(majority), abs=0.02)


def test_k_asks_for_what_k_draws_would_show(tmp_path: Path) -> None:
    problems = make_problems(6)
    pools = [random_pool(tmp_path / name, problems, 12, seed)[0] for seed, name in enumerate(("b", "p"), 1)]
    scope = one(compared(tmp_path / "b", tmp_path / "p", k=5)).overall
    assert (scope.k_max, scope.n_min, scope.rows_k, scope.curves.ks[-1]) == (5, 12, 5, 12)
    hits = [pool.hits().correct_p for pool in pools]
    expected = expected_cells(*hits, 12, 12, 5).sum(axis=0)
    estimates = scope.problem_level.any_hit.estimates
    assert [estimates[cell].value for cell in CELLS] == pytest.approx(expected.tolist())
    with pytest.raises(PoolError, match=r"k .* 0"):
        compared(tmp_path / "b", tmp_path / "p", k=0)
    assert any("k = 99 was asked for" in note for note in compared(tmp_path / "b", tmp_path / "p", k=99).notes)


def numbers_of(value: Any) -> list[float]:
    """Every number of a record, texts left out."""
    if isinstance(value, dict):
        return [x for key, inner in value.items() if not key.endswith("_text") for x in numbers_of(inner)]
    if isinstance(value, list):
        return [x for inner in value for x in numbers_of(inner)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.parametrize("k", [None, 4])
def test_the_order_of_a_problem_s_rows_in_an_imported_file_changes_no_number(tmp_path: Path, k: int | None) -> None:
    problems = make_problems(8)
    rng = np.random.default_rng(8)
    records = []
    for shuffled in (False, True):
        folder = tmp_path / str(shuffled)
        folder.mkdir()
        for seed, (name, draws) in enumerate((("base", 24), ("policy", 10))):
            columns = random_rows(problems, draws, seed)
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            if shuffled:
                order = rng.permutation(len(rows))
                rows = sorted((rows[i] for i in order), key=lambda row: row["problem_id"])
            lines = [json.dumps({key: v for key, v in row.items() if key != "index"}) for row in rows]
            (folder / f"{name}.jsonl").write_text("\n".join(lines))
            import_samples(folder / f"{name}.jsonl", folder / name, model=name)
        comparison = compared(folder / "base", folder / "policy", k=k)
        records.append(numbers_of(json.loads(json_report(comparison))["policies"]))
    assert len(records[0]) > 300
    assert records[0] == pytest.approx(records[1], rel=1e-9)


def test_what_an_imported_pool_does_not_say_is_not_taken_for_agreement(tmp_path: Path) -> None:
    problems = make_problems(2)
    unknown = {"temperature": -1.0, "top_p": -1.0, "max_new_tokens": -1, "template": "unknown"}
    for name in ("b", "p"):
        make_pool(tmp_path / name, [1, 0], 4, problems, **unknown)
    warnings = compared(tmp_path / "b", tmp_path / "p").warnings
    assert "b does not say how it was sampled and which template it used" in warnings[0]


def test_a_pool_against_itself_is_said_to_be(tmp_path: Path) -> None:
    make_pool(tmp_path / "b", [1, 0], 4, make_problems(2))
    assert any("compared with itself" in text for text in compared(tmp_path / "b", tmp_path / "b").warnings)


def test_incomplete_pools_compare_what_is_there_and_say_what_is_missing(tmp_path: Path) -> None:
    problems = make_problems(3)
    base = Pool.create(tmp_path / "b", make_spec(problems, 10, weights="b"), problems)
    policy = Pool.create(tmp_path / "p", make_spec(problems, 10, weights="p"), problems)
    # p0: the base lacks draws 0 and 3, and the policy has six draws: two of the base's eight are hits.
    base.append([Sample("p0", i, "0", i in (8, 9), "ok") for i in (1, 2, 4, 5, 6, 7, 8, 9)])
    policy.append([Sample("p0", i, "0", i == 4, "ok") for i in range(6)])
    base.append([Sample("p1", i, "2", True, "ok") for i in range(10)])
    policy.append([Sample("p1", i, "2", True, "ok") for i in range(10)])
    base.append([Sample("p2", i, "2", True, "ok") for i in range(10)])
    comparison = compared(tmp_path / "b", tmp_path / "p")
    scope = one(comparison).overall
    assert (scope.problems, scope.k_min, scope.k_max) == (2, 6, 10)
    estimates = scope.problem_level.any_hit.estimates  # one of 28 choices of six draws has no hit
    assert [estimates[cell].value for cell in CELLS] == pytest.approx([1 + 27 / 28, 0, 1 / 28, 0])
    assert scope.curves.ks == (1, 2, 4, 6, 8)
    text = "\n".join(comparison.warnings)
    assert "b, sums: INCOMPLETE, 2 of 30 draws (6.7%) are missing, in 1 of 3 problems" in text
    assert "p, sums: INCOMPLETE, 14 of 30 draws" in text
    assert "p, sums: 1 problems have no draw at all and are left out" in text


def stopped_pool(path: Path, problems: Sequence[Problem], rows: dict[str, list[Any]], successes: int, cap: int) -> Pool:
    """What a plan that stops at `successes` keeps of the rows."""
    pool = Pool.create(path, make_spec(problems, cap, weights=str(path), plan=Plan(successes=successes)), problems)
    kept, hits = [], Counter[str]()
    for i, (problem, correct) in enumerate(zip(rows["problem_id"], rows["correct"], strict=True)):
        if hits[problem] < successes:
            kept.append(i)
            hits[problem] += correct
    pool.append({name: [values[i] for i in kept] for name, values in rows.items()})
    return pool


def test_adaptive_plans_use_the_estimators_of_the_stopped_experiment(tmp_path: Path) -> None:
    problems = make_problems(12)
    pools = [
        stopped_pool(tmp_path / name, problems, random_rows(problems, 24, seed), 2, 24)
        for seed, name in enumerate(("b", "p"))
    ]
    comparison = compared(tmp_path / "b", tmp_path / "p")
    scope = one(comparison).overall
    hits = [pool.hits() for pool in pools]
    assert cells(scope.units.any_hit)[0] == dynamics(hits[0].correct_p, hits[1].correct_p).preserved
    test = stopped_noise_test(*((h.n_p, h.correct_p) for h in hits), successes=2, cap=24)
    assert scope.units.any_hit.shrunk.p == pytest.approx(test.shrunk.p)
    expected = stopped_pass_at_k(hits[0].n_p, hits[0].correct_p, scope.curves.ks, successes=2, cap=24).mean(axis=0)
    assert [e.value for e in scope.curves.base] == pytest.approx(expected.tolist())
    assert scope.units.stable is None  # two successes cannot tell five hits
    assert scope.k_min == scope.k_max == 24
    assert one(comparison).sensitivity == ()
    assert "until 2 successes, at most 24 draws" in comparison.notes[0]
    assert not comparison.warnings


def test_an_adaptive_pool_against_a_fixed_one_is_decided_as_two_fixed_ones(tmp_path: Path) -> None:
    problems = make_problems(12)
    rows = [random_rows(problems, 24, seed) for seed in (0, 1)]
    stopped_pool(tmp_path / "until", problems, rows[0], 5, 24)
    for name, of_pool in zip(("fixed", "policy"), rows, strict=True):
        Pool.create(tmp_path / name, make_spec(problems, 24, weights=name), problems).append(of_pool)
    mixed = one(compared(tmp_path / "until", tmp_path / "policy")).overall.problem_level
    fixed = one(compared(tmp_path / "fixed", tmp_path / "policy")).overall.problem_level
    assert cells(mixed.any_hit) == cells(fixed.any_hit)
    assert mixed.stable is not None
    assert fixed.stable is not None
    assert cells(mixed.stable) == cells(fixed.stable)


def test_a_task_of_fewer_draws_than_five_stands_beside_one_that_stops(tmp_path: Path) -> None:
    problems, few = make_problems(6), [Problem(f"q{i}", f"{i} + 1 =", str(i + 1), {}) for i in range(3)]
    for seed, (name, hits) in enumerate({"b": [1, 2, 3], "p": [1, 0, 3]}.items()):
        stopped_pool(tmp_path / name / "sums", problems, random_rows(problems, 24, seed), 5, 24)
        make_pool(tmp_path / name / "few", hits, 3, few, task="few")
    result = one(compared(tmp_path / "b", tmp_path / "p"))
    sums = next(scope for scope in result.tasks if scope.name == "sums").problem_level.stable
    both = result.overall.problem_level.stable
    assert sums is not None
    assert both is not None
    assert cells(both) == (*cells(sums)[:3], cells(sums)[3] + 3)
    assert cells(result.overall.problem_level.any_hit)[2] >= 1
    assert 0 < both.shrunk.p <= 1


def test_rates_under_a_plan_that_stops_are_of_draws_that_do_not_depend_on_success(tmp_path: Path) -> None:
    """The fewest draws that a problem happens to have end at its success, so a rate over these is too high."""
    problems = make_problems(3)
    for name, ends in (("base", (3, 4, 9)), ("policy", (5, 3, 3))):
        pool = Pool.create(tmp_path / name, make_spec(problems, 16, weights=name, plan=Plan(successes=2)), problems)
        pool.append(
            [
                Sample(problem.id, i, "1", i in (1, end - 1), "ok")
                for problem, end in zip(problems, ends, strict=True)
                for i in range(end)
            ]
        )
    comparison = compared(tmp_path / "base", tmp_path / "policy")
    assert "of the first 2 draws of every problem" in comparison.notes[0]
    assert one(comparison).overall.rows["avg"].base.value == 0.5


def test_a_plan_that_stops_says_nothing_of_a_problems_other_answers(tmp_path: Path) -> None:
    """Two correct answers, the base finds both: stopped at one success, which of them came is chance."""
    problems = make_problems(3)
    for name, answers in (("b", ("x", "y")), ("p", ("y", "x"))):
        spec = make_spec(problems, 2, weights=name, plan=Plan(successes=1))
        pool = Pool.create(tmp_path / name, spec, problems, [["x", "y"]] * 3)
        pool.append([Sample(problem.id, 0, answers[0], True, "ok") for problem in problems])
    comparison = compared(tmp_path / "b", tmp_path / "p")
    scope = one(comparison).overall
    assert scope.one_unit
    assert scope.units.total == 3
    assert cells(scope.units.any_hit) == (3, 0, 0, 0)
    assert one(comparison).lost.units == 0
    assert any("support is of problems only" in text for text in comparison.notes)


def test_an_unfinished_adaptive_pool_is_compared_as_far_as_every_problem_goes(tmp_path: Path) -> None:
    problems = make_problems(2)
    for name in ("b", "p"):
        plan = Plan(successes=1)
        pool = Pool.create(tmp_path / name, make_spec(problems, 32, weights=name, plan=plan), problems)
        pool.append([Sample("p0", 0, "0", True, "ok")])
        pool.append([Sample("p1", i, "no", False, "ok") for i in range(32 if name == "b" else 8)])
    comparison = compared(tmp_path / "b", tmp_path / "p")
    assert one(comparison).overall.k_max == 8
    assert any("INCOMPLETE, 1 of 2 problems are unfinished" in text for text in comparison.warnings)
