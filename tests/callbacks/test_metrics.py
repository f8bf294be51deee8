import math

import numpy as np
import pytest

from offleash.callbacks.metrics import (
    count_whole,
    interval_metrics,
    leash_curve,
    measured,
    noise_metrics,
    sample_metrics,
    spelling_metrics,
    support_metrics,
    verdict_of,
)
from offleash.callbacks.summary import spelling_words
from offleash.callbacks.tags import SPELLING
from offleash.eval.comparison.changes import Change, changes
from offleash.eval.errors import PoolError
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem
from offleash.eval.stats.entropy import answer_entropy_corrected
from offleash.eval.stats.leash.pools import pool_line
from offleash.eval.stats.noise import noise_test
from offleash.eval.stats.passk import powers_of_two
from offleash.eval.stats.support import detection_limit

PROBLEMS = [Problem("p", "2 2 = 4:", "2+2"), Problem("q", "1 2 = 3:", "1+2")]
ANSWERS = [("2+2", "2*2"), ("1+2", "2+1")]


def pool_of(path, draws, problems=PROBLEMS, answers=ANSWERS):
    """`draws` maps a problem id to rows of (answer, status, tokens, logprob, base_logprob, entropy)."""
    pool = make_pool(path, None, 8, problems, answers)
    listed = {problem.id: right for problem, right in zip(problems, answers, strict=True)}
    pool.append(
        [
            Sample(
                problem, i, answer, answer in listed[problem], status, "", tokens, logprob, base_logprob, entropy, ""
            )
            for problem, rows in draws.items()
            for i, (answer, status, tokens, logprob, base_logprob, entropy) in enumerate(rows)
        ]
    )
    return pool


@pytest.fixture
def pool(tmp_path):
    p = [("2+2", "ok", 4, -1.0, -3.0, 0.2), ("2+2", "ok", 4, -1.0, -2.0, 0.4), (None, "truncated", 8, None, None, None)]
    q = [("1+2", "ok", 4, -2.0, -2.0, 0.6), ("9", "ok", 2, None, None, None), (None, "timeout", 2, None, None, None)]
    return pool_of(tmp_path / "pool", {"p": [*p, (None, "no_answer", 1, None, None, None)], "q": [*q, q[1]]})


def test_numbers_by_hand(pool):
    metrics = sample_metrics(pool.tally(), temperature=1.0)
    assert metrics["pass_at_k/1"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert metrics["pass_at_k/2"] == pytest.approx((1 - 1 / 6 + 1 - 3 / 6) / 2)
    assert metrics["pass_at_k/4"] == 1.0
    assert "pass_at_k/8" not in metrics
    # p: 2+2 twice, no answer twice; q: 1+2, 9 twice, and a timeout, which is not "no answer"
    q = math.log(3) - 2 / 3 * math.log(2)
    assert metrics["entropy/answer"] == pytest.approx((math.log(2) + q) / 2)
    corrected = [answer_entropy_corrected(counts) for counts in ([2, 2], [1, 2])]
    assert metrics["entropy/effective_answers"] == pytest.approx(sum(map(math.exp, corrected)) / 2)
    assert metrics["entropy/pcmd"] == 0.0  # of p alone: q has one correct sample
    assert metrics["entropy/token_T1"] == pytest.approx(0.4)
    assert metrics["support/distinct_correct"] == 1.0
    assert metrics["support/unseen_correct"] == pytest.approx((0 + 1 / 4) / 2)  # q gave 1+2 once
    assert metrics["verify/response_length"] == pytest.approx((4 + 4 + 8 + 1 + 4 + 2 + 2 + 2) / 8)
    assert metrics["verify/truncated"] == metrics["verify/no_answer"] == metrics["verify/timed_out"] == 1 / 8
    assert metrics["verify/failed"] == 0
    assert metrics["monitor/kl_base_k1"] == pytest.approx((2.0 + 1.0 + 0.0) / 3)


def test_what_is_not_known_is_nan_and_not_zero(tmp_path):
    row = ("2+2", "ok", None, None, None, None)
    pool = pool_of(tmp_path / "pool", {"p": [row], "q": [("1+2", "ok", None, None, None, None)]})
    metrics = sample_metrics(pool.tally(), temperature=1.0)
    undefined = ("entropy/token_T1", "monitor/kl_base_k1", "verify/response_length")
    too_few = ("entropy/pcmd", "cover_at_tau/0.2", "cover_at_tau/0.8")
    for tag in (*undefined, *too_few):
        assert math.isnan(metrics[tag]), tag


def test_verdicts_without_answers_give_no_number_about_answers(tmp_path):
    problems = [Problem("p", "a", "1"), Problem("q", "b", "2")]
    pool = make_pool(tmp_path / "pool", None, 5, problems)
    pool.append([Sample(p.id, i, None, i < 2, "ok") for p in problems for i in range(5)])
    metrics = sample_metrics(count_whole(pool), temperature=1.0)
    of_answers = ("answer", "answer_corrected", "effective_answers", "pcmd")
    for tag in (*(f"entropy/{name}" for name in of_answers), "verify/no_answer"):
        assert math.isnan(metrics[tag]), tag
    assert (metrics["pass_at_k/1"], metrics["cover_at_tau/0.2"], metrics["cover_at_tau/0.8"]) == (0.4, 1.0, 0.0)


def test_a_pool_that_misses_a_sample_has_no_numbers(tmp_path):
    pool = make_pool(tmp_path / "pool", hits=[3, 0], k=4)
    assert count_whole(pool).hits.n_p.tolist() == [4, 4]
    cut = pool_of(
        tmp_path / "cut",
        {"p": [("2+2", "ok", 4, -1.0, -3.0, 0.2)] * 8, "q": [("9", "ok")[:2] + (1,) + (None,) * 3] * 7},
    )
    with pytest.raises(PoolError, match=f"{cut.path} .* 1 of its 16 samples"):
        count_whole(cut)


def test_units_and_problems_are_counted_apart(pool, tmp_path):
    def row(answer):
        return (answer, "ok", 3, None, None, None)

    policy = pool_of(tmp_path / "policy", {"p": [row("2*2")] * 4, "q": [row("1+2"), row("2+1"), row("2+1"), row("5")]})
    metrics = support_metrics(pool.hits(), policy.hits())
    cells = ("preserved", "shrunk", "expanded", "out")
    assert [metrics[f"support/unit/{cell}"] for cell in cells] == [1, 1, 2, 0]
    assert [metrics[f"support/problem/{cell}"] for cell in cells] == [2, 0, 0, 0]
    assert metrics["support/unit/srr"] == 0.5
    assert metrics["support/unit/nscr"] == pytest.approx(1 / 4)
    assert metrics["support/detection_limit"] == detection_limit(4)
    assert {metric.tag for metric in measured(4, 1.0)} - set(sample_metrics(pool.tally(), 1.0)) - {
        "monitor/samples",
        "monitor/seconds",
        "monitor/seconds_total",
        "monitor/failed",
    } == set(metrics) | set(noise_metrics(pool.hits(), 4)) | set(interval_metrics(pool.hits(), policy.hits()))
    lost, gained = changes(pool.hits(), policy.hits())
    assert lost == [Change("p", "2+2", 2, 4, 0, 4)]
    assert gained == [Change("p", "2*2", 0, 4, 4, 4), Change("q", "2+1", 0, 4, 2, 4)]


def test_pools_of_other_problems_cannot_be_compared(pool, tmp_path):
    other = pool_of(
        tmp_path / "other", {"r": [("1", "ok", 1, None, None, None)]}, [Problem("r", "1 = 1:", "1")], [("1",)]
    )
    with pytest.raises(PoolError, match="pools"):
        support_metrics(pool.hits(), other.hits())


def test_the_noise_of_both_levels_is_that_of_the_noise_test():
    rng = np.random.default_rng(0)
    rate_u = rng.beta(0.5, 5, 40)
    problem_u = np.repeat(np.arange(20), 2)
    drawn = [rng.binomial(32, rate) for rate in (rate_u, np.where(np.arange(40) < 6, 0, rate_u))]
    hits = [
        Hits(
            problem_ids=tuple(map(str, range(20))),
            n_p=np.full(20, 64),
            correct_p=np.bincount(problem_u, hits_u).astype(np.int64),
            unit_problem=problem_u,
            unit_answer=tuple(map(str, range(40))),
            unit_hits=hits_u,
        )
        for hits_u in drawn
    ]
    found = support_metrics(*hits)
    tests = {
        "unit": noise_test(*drawn, 64, 64, problem_u),
        "problem": noise_test(hits[0].correct_p, hits[1].correct_p, 64, 64),
    }
    for level, test in tests.items():
        for name, side in test._asdict().items():
            assert found[f"support/{level}/expected_{name}"] == pytest.approx(side.expected)
            assert found[f"support/{level}/p_{name}"] == pytest.approx(side.p)
            assert found[f"support/{level}/p_{name}_strength"] == pytest.approx(side.p_strength)
            assert found[f"support/{level}/{name}_sure"] == side.sure_u.sum()


def test_budgets_are_powers_of_two():
    assert powers_of_two(1) == [1]
    assert powers_of_two(64) == [1, 2, 4, 8, 16, 32, 64]
    assert powers_of_two(100)[-1] == 64


def test_spellings_lost_and_gained_are_counted_where_a_task_tells_them_apart(tmp_path):
    def spelled(name, texts):
        made = make_pool(tmp_path / name, None, len(texts), PROBLEMS[:1], ANSWERS[:1])
        answers = {"2+2": "2+2", "(2)+2": "2+2", "2*2": "2*2", "(2)*2": "2*2"}
        made.append([Sample("p", i, answers[text], True, "ok", spelling=text) for i, text in enumerate(texts)])
        return made.spelled()

    base = spelled("base", ["2+2"] * 10 + ["(2)+2"] * 9 + ["2*2"])
    policy = spelled("policy", ["2+2"] * 19 + ["(2)*2"])
    metrics = spelling_metrics(base, policy)
    assert set(metrics) == {metric.tag for metric in SPELLING}
    assert [metrics[f"support/spelling/{cell}"] for cell in ("preserved", "shrunk", "expanded")] == [1, 2, 1]
    assert metrics["support/spelling/srr"] == pytest.approx(1 / 3)
    assert metrics["support/spelling/nscr"] == pytest.approx(-1 / 4)
    assert metrics["support/spelling/respelled"] == 2  # the policy reaches 2*2 in another spelling
    assert metrics["support/spelling/p_shrunk_strength"] < 0.01 < metrics["support/spelling/p_expanded_strength"]
    assert spelling_metrics(base, None) == spelling_metrics(None, policy) == {}
    assert spelling_words(metrics) == ", spellings lost 2 (p = .001)"
    assert spelling_words({}) == ""


def test_the_line_of_a_step_is_that_of_the_pools_and_gives_its_word():
    rng = np.random.default_rng(1)
    base_p = rng.binomial(64, rng.beta(0.5, 2, 60))
    policy_p = np.where(np.arange(60) % 3 == 0, 0, np.minimum(64, 2 * base_p))
    ids = tuple(map(str, range(60)))
    base, policy = (Hits(ids, np.full(60, 64), hits, np.arange(60), (None,) * 60, hits) for hits in (base_p, policy_p))
    found = support_metrics(base, policy)
    line = pool_line(base_p, 64, range(60), policy_p.mean() / 64, ks=[1, 64])
    assert found["support/leash/nscr"] == pytest.approx(line.nscr, abs=0.02)
    assert found["support/leash/above"] == pytest.approx(found["support/unit/nscr"] - found["support/leash/nscr"])
    assert found["support/leash/log_weight"] == pytest.approx(line.log_weight, abs=0.1)
    assert leash_curve(found, 64)[1] == pytest.approx(policy_p.mean() / 64)
    assert leash_curve(found, 64)[64] == pytest.approx(line.pass_at_k[64], abs=0.02)
    assert verdict_of(found) == "shrinks"
    assert found == support_metrics(base, policy)  # the same again
    assert leash_curve({}, 64) == {}
    assert verdict_of({}) is None
