"""A comparison says what a hand count says, gives the numbers of the paper, and finds nothing where nothing changed."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offleash.eval.comparison.result import Support
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool, make_spec
from offleash.eval.report.words import summary
from offleash.eval.stats.entropy import answer_entropy, answer_entropy_corrected
from offleash.eval.stats.noise import noise_test
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.support import METRICS, detection_limit, dynamics
from tests.eval.comparison.random_pools import cells, compared, make_problems, one, random_pool


def test_support_equals_a_hand_count_at_both_thresholds(tmp_path: Path) -> None:
    base, policy = [9, 5, 3, 1, 0, 0, 4], [9, 0, 6, 0, 1, 0, 5]
    problems = make_problems(7)
    make_pool(tmp_path / "b", base, 10, problems)
    make_pool(tmp_path / "p", policy, 10, problems)
    scope = one(compared(tmp_path / "b", tmp_path / "p")).overall
    assert scope.one_unit
    assert (scope.problems, scope.k_min, scope.k_max, scope.rows_k) == (7, 10, 10, 10)
    for level in (scope.units, scope.problem_level):
        assert cells(level.any_hit) == (3, 1, 2, 1)
        assert level.stable is not None
        assert cells(level.stable) == (1, 2, 1, 3)
        test = noise_test(base, policy, 10, 10)
        assert level.any_hit.shrunk.expected == pytest.approx(test.shrunk.expected)
        assert level.any_hit.shrunk.excess == pytest.approx(2 - test.shrunk.expected)
        assert level.any_hit.expanded.p == pytest.approx(test.expanded.p)
        assert level.any_hit.expanded.p_strength == pytest.approx(test.expanded.p_strength)
        assert level.any_hit.shrunk.sure == int(test.shrunk.sure_u.sum())
        assert level.any_hit.detection_limit == detection_limit(10)
        estimates = level.any_hit.estimates
        assert [estimates[m].value for m in METRICS] == pytest.approx([3 / 5, 1 / 4, 6 / 17, -1 / 6])
        assert all(e.low <= e.value <= e.high and e.n == 7 for e in estimates.values())
    curves = scope.curves
    assert curves.ks == (1, 2, 4, 8, 10)
    expected = pass_at_k(base, np.full(7, 10), curves.ks).mean(axis=0)
    assert [e.value for e in curves.base] == pytest.approx(expected.tolist())
    assert curves.difference[0].value == pytest.approx((22 - 21) / 70)
    assert curves.state == "undecided"


def test_samples_table_and_perplexity_equal_a_plain_loop(tmp_path: Path) -> None:
    problems = make_problems(6)
    _, base = random_pool(tmp_path / "b", problems, 12, seed=1)
    _, policy = random_pool(tmp_path / "p", problems, 12, seed=2)
    scope = one(compared(tmp_path / "b", tmp_path / "p")).overall

    def by_problem(rows: dict[str, Any], name: str) -> list[list[Any]]:
        values = np.array(rows[name], dtype=object).reshape(6, 12)
        return [[v for v in row if v is not None or name == "answer"] for row in values]

    for side, rows in (("base", base), ("policy", policy)):
        got = {name: getattr(contrast, side) for name, contrast in scope.rows.items()}
        counts = [Counter(answers) for answers in by_problem(rows, "answer")]
        assert got["avg"].value == pytest.approx(np.mean(rows["correct"]))
        assert got["tokens"].value == pytest.approx(np.mean(rows["tokens"]))
        assert got["token_entropy"].value == pytest.approx(np.mean([np.mean(v) for v in by_problem(rows, "entropy")]))
        plain, corrected = (
            np.mean([measure(list(c.values())) for c in counts])
            for measure in (answer_entropy, answer_entropy_corrected)
        )
        assert got["answer_entropy"].value == pytest.approx(plain)
        assert got["answer_entropy_corrected"].value == pytest.approx(corrected)
        effective = [math.exp(answer_entropy_corrected(list(c.values()))) for c in counts]
        assert got["effective_answers"].value == pytest.approx(np.mean(effective))
        accuracy = np.reshape(rows["correct"], (6, 12)).mean(axis=1)
        for tau in (0.2, 0.8):
            assert got[f"cover_{tau}"].value == np.mean(accuracy >= tau)
        votes = []
        for problem, count in zip(problems, counts, strict=True):
            count.pop(None, None)
            best = [answer for answer, times in count.items() if times == max(count.values())]
            votes.append((problem.gold in best) / len(best))
        assert got["majority"].value == pytest.approx(np.mean(votes))
        for status in ("no_answer", "truncated", "timeout"):
            assert got[status].value == pytest.approx(rows["status"].count(status) / 72)
    nll = [
        np.mean([-lp / t for lp, t in zip(logps, tokens, strict=True) if lp is not None])
        for logps, tokens in zip(
            np.array(policy["base_logprob"], object).reshape(6, 12), np.reshape(policy["tokens"], (6, 12)), strict=True
        )
    ]
    under_base = next(row for row in scope.perplexity if (row.drawn_by, row.under) == ("policy", "base"))
    assert under_base.estimates["all"].value == pytest.approx(math.exp(np.mean(nll)))
    assert under_base.estimates["all"].n == 6


def test_units_and_problems_are_told_apart(tmp_path: Path) -> None:
    problems = make_problems(2)
    for name, answers in (("b", ["x", "y", "x", "x"]), ("p", ["x", "x", "x", "z"])):
        pool = Pool.create(tmp_path / name, make_spec(problems, 4, weights=name), problems, [("x", "y", "z"), ("x",)])
        pool.append([Sample("p0", i, answer, True, "ok") for i, answer in enumerate(answers)])
        pool.append([Sample("p1", i, "no", False, "ok") for i in range(4)])
    result = one(compared(tmp_path / "b", tmp_path / "p"))
    assert not result.overall.one_unit
    assert cells(result.overall.units.any_hit) == (1, 1, 1, 1)
    assert cells(result.overall.problem_level.any_hit) == (1, 0, 0, 1)
    assert (result.lost.units, result.lost.problems, result.gained.units) == (1, 0, 1)
    assert result.lost.examples[0].change.answer == "y"
    assert not result.lost.examples[0].whole_problem


@pytest.mark.parametrize("limit", [None, 7])
def test_a_tally_of_first_draws_is_that_of_a_pool_with_only_those(tmp_path: Path, limit: int | None) -> None:
    problems = make_problems(5)
    pool, rows = random_pool(tmp_path / "a", problems, 20, seed=3)
    limit_p = np.array([3, 20, 1, limit or 20, 9])
    short = Pool.create(tmp_path / "b", make_spec(problems, 20, weights="short"), problems)
    kept = [i for i, (p, index) in enumerate(zip(rows["problem_id"], rows["index"], strict=True))
            if index < limit_p[int(p[1:])]]  # fmt: skip
    short.append({name: [values[i] for i in kept] for name, values in rows.items()})
    got, expected = pool.tally(limit_p), short.tally()
    assert got.hits.correct_p.tolist() == expected.hits.correct_p.tolist()
    assert got.hits.n_p.tolist() == limit_p.tolist()
    assert got.status_ps.tolist() == expected.status_ps.tolist()
    assert got.sum_pv == pytest.approx(expected.sum_pv)
    assert sorted(zip(got.class_problem, got.class_count, got.class_correct, strict=True)) == sorted(
        zip(expected.class_problem, expected.class_count, expected.class_correct, strict=True)
    )


# The paper's rows, through pools that have their counts.

TABLE_6 = {  # set: (domain, P, E, S, O, SRR, NDR, SDS, NSCR)
    "AIME2024": ("Math", 25, 0, 3, 2, 0.893, 0.0, 0.0, -0.107),
    "AIME2025": ("Math", 20, 2, 4, 4, 0.833, 0.091, 0.164, -0.077),
    "AMC23": ("Math", 40, 0, 0, 0, 1.0, 0.0, 0.0, 0.0),
    "MATH500": ("Math", 497, 0, 1, 2, 0.998, 0.0, 0.0, -0.002),
    "Minerva": ("Math", 173, 0, 22, 77, 0.887, 0.0, 0.0, -0.113),
    "Olympiad": ("Math", 600, 3, 26, 46, 0.958, 0.005, 0.010, -0.037),
    "SimpleQA": ("Non-Math", 75, 3, 26, 329, 0.743, 0.038, 0.073, -0.221),
    "LiveBench-R": ("Non-Math", 94, 0, 6, 0, 0.940, 0.0, 0.0, -0.060),
    "LiveBench-C": ("Non-Math", 67, 5, 13, 43, 0.838, 0.069, 0.128, -0.094),
    "LiveBench-L": ("Non-Math", 10, 2, 3, 35, 0.769, 0.167, 0.274, -0.067),
    "SciBench": ("Non-Math", 616, 10, 35, 31, 0.946, 0.016, 0.031, -0.038),
    "LCBv5": ("Non-Math", 129, 10, 21, 163, 0.860, 0.072, 0.133, -0.069),
    "LCBv6": ("Non-Math", 54, 1, 3, 73, 0.947, 0.018, 0.036, -0.034),
}
AGGREGATE_6 = {  # SRR, NDR, SDS, NSCR
    "Math": (0.960, 0.0037, 0.0073, -0.036),
    "Non-Math": (0.907, 0.0288, 0.0558, -0.064),
    "overall": (0.936, 0.0148, 0.0291, -0.049),
}
TABLE_4 = {  # step: set -> (pass@256 of the policy in %, P, E, S, O)
    30: {"AIME24": (80.00, 24, 0, 1, 5), "AIME25": (70.00, 19, 2, 2, 7), "Olympiad": (86.67, 572, 13, 22, 68)},
    150: {"AIME24": (80.00, 24, 0, 1, 5), "AIME25": (73.33, 19, 3, 2, 6), "Olympiad": (85.48, 567, 10, 27, 71)},
    300: {"AIME24": (73.33, 22, 0, 3, 5), "AIME25": (66.67, 18, 2, 3, 7), "Olympiad": (79.70, 533, 5, 61, 76)},
}
# As printed, but for AIME25 at step 300: the paper has -.042 (and SRR .864) where its own counts give -.043 (.857).
NSCR_4 = {30: (-0.040, 0.000, -0.015), 150: (-0.040, 0.042, -0.028), 300: (-0.120, -0.043, -0.093)}


def hits_of_counts(p: int, e: int, s: int, o: int) -> tuple[list[int], list[int]]:
    return [2] * p + [0] * e + [1] * s + [0] * o, [1] * p + [2] * e + [0] * (s + o)


def values(support: Support) -> list[float]:
    return [support.estimates[metric].value for metric in METRICS]


def test_table_6_of_the_paper_by_task_domain_and_overall(tmp_path: Path) -> None:
    for name, (domain, *counts) in TABLE_6.items():
        problems = make_problems(sum(counts[:4]), [domain])
        base, policy = hits_of_counts(*counts[:4])
        make_pool(tmp_path / "base" / name, base, 2, problems, task=name)
        make_pool(tmp_path / "rl" / name, policy, 2, problems, task=name)
    result = one(compared(tmp_path / "base", tmp_path / "rl"))
    for scope in result.tasks:
        _, *counts = TABLE_6[scope.name]
        assert cells(scope.problem_level.any_hit) == tuple(counts[:4])
        assert values(scope.problem_level.any_hit) == pytest.approx(counts[4:], abs=6e-4)
    assert {scope.name: scope.problems for scope in result.domains} == {"Math": 1547, "Non-Math": 1857}
    for scope in (*result.domains, result.overall):
        assert values(scope.problem_level.any_hit) == pytest.approx(AGGREGATE_6[scope.name], abs=6e-4)
    assert cells(result.overall.problem_level.any_hit) == (2400, 36, 163, 805)


def test_table_4_of_the_paper_as_a_series_of_checkpoints(tmp_path: Path) -> None:
    for step, sets in TABLE_4.items():
        for name, (_, *counts) in sets.items():
            problems = make_problems(sum(counts))
            # The base's support is the same at every step only in number; which problems those are is free.
            policy = [1] * (counts[0]) + [0] * counts[2] + [1] * counts[1] + [0] * counts[3]
            make_pool(tmp_path / "run" / f"step-{step:06d}" / name, policy, 2, problems, task=name)
            base = [1] * (counts[0] + counts[2]) + [0] * (counts[1] + counts[3])
            if step == 30:
                make_pool(tmp_path / "base" / name, base, 2, problems, task=name)
    comparison = compared(tmp_path / "base", tmp_path / "run")
    assert [result.side.step for result in comparison.policies] == [30, 150, 300]
    for result in comparison.policies:
        assert result.side.step is not None
        for scope, nscr in zip(result.tasks, NSCR_4[result.side.step], strict=True):
            percent, *counts = TABLE_4[result.side.step][scope.name]
            assert cells(scope.problem_level.any_hit) == tuple(counts)
            assert scope.problem_level.any_hit.estimates["nscr"].value == pytest.approx(nscr, abs=6e-4)
            assert 100 * scope.curves.policy[-1].value == pytest.approx(percent, abs=6e-3)


# Nothing changed, so nothing is found.


def test_a_pool_against_itself_shows_no_change(tmp_path: Path) -> None:
    random_pool(tmp_path / "b", make_problems(8), 16, seed=4)
    result = one(compared(tmp_path / "b", tmp_path / "b"))
    scope = result.overall
    assert cells(scope.units.any_hit)[1:3] == (0, 0)
    assert scope.units.any_hit.shrunk.p == 1
    assert scope.curves.state == "equal"
    assert scope.curves.leads == ()
    assert all(row.difference.value == 0 for row in scope.rows.values() if row.difference.n)
    assert (result.lost.units, result.gained.units) == (0, 0)


def test_a_unit_held_firmly_and_lost_is_named_whatever_the_count_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rate_p = rng.beta(0.4, 1.0, 40)
    base, policy = (rng.binomial(100, rate_p) for _ in range(2))
    base[7], policy[7] = 60, 0
    problems = make_problems(40)
    make_pool(tmp_path / "b", base.tolist(), 100, problems)
    make_pool(tmp_path / "p", policy.tolist(), 100, problems)
    result = one(compared(tmp_path / "b", tmp_path / "p"))
    lost = result.overall.units.any_hit.shrunk
    assert lost.p > 0.05
    assert lost.p_strength < 0.001
    assert lost.sure_units == (7,)
    assert [example.change.problem_id for example in result.lost.examples if example.sure] == [problems[7].id]
    assert result.lost.examples[0].sure
    assert "p < .001 by how firmly they were held" in " ".join(summary(result))


def test_two_pools_of_one_model_show_change_but_no_excess(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rate_p = rng.beta(0.3, 2, 300)
    problems = make_problems(300)
    for name in ("b", "p"):
        make_pool(tmp_path / name, rng.binomial(32, rate_p).tolist(), 32, problems)
    support = one(compared(tmp_path / "b", tmp_path / "p")).overall.units.any_hit
    assert min(cells(support)[1:3]) > 5  # noise alone looks like change
    for noise in (support.shrunk, support.expanded):
        assert abs(noise.excess) < 3 * math.sqrt(noise.expected)
        assert noise.p > 0.01


def test_a_planted_loss_is_found(tmp_path: Path) -> None:
    problems = make_problems(40)
    make_pool(tmp_path / "b", [8] * 30 + [0] * 10, 32, problems)
    make_pool(tmp_path / "p", [20] * 20 + [0] * 20, 32, problems)
    result = one(compared(tmp_path / "b", tmp_path / "p"))
    assert result.overall.units.any_hit.shrunk.p < 1e-6
    assert result.overall.curves.state == "crosses"
    first, second = result.overall.curves.leads
    assert (first.leader, second.leader) == ("policy", "base")
    assert 1 < second.since.value < 8
    assert result.sensitivity[0].observed == dynamics([8] * 30 + [0] * 10, [20] * 20 + [0] * 20)
    assert [row.eps for row in result.sensitivity] == [2.0**-j for j in range(6, 0, -1)]
    assert result.sensitivity[-1].observed.preserved == 0
