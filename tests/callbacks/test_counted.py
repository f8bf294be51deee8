"""All numbers of a step from two pools: the same as from their parts, whatever the plan."""

import math

import numpy as np
import pytest

from offleash.callbacks.counted import count_base, count_pool, pool_metrics, step_metrics
from offleash.callbacks.metrics import measured, sample_metrics, support_metrics
from offleash.eval.errors import PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool, make_problems, make_spec
from offleash.eval.sampling import Plan
from offleash.eval.stats.stopping import stopped_noise_test, stopped_pass_at_k

SUCCESSES, CAP = 5, 32


def stopped_pool(path, rates, seed, successes=SUCCESSES, cap=CAP, answers=None):
    """Drawn until so many successes, at most `cap` draws, from problems of known rates."""
    rng = np.random.default_rng(seed)
    problems = make_problems(len(rates))
    spec = make_spec(problems, cap, plan=Plan(successes=successes), weights=str(path))
    pool = Pool.create(path, spec, problems, answers)
    rows = {"problem_id": [], "index": [], "correct": [], "answer": [], "status": []}
    for problem, rate in zip(problems, rates, strict=True):
        correct_r = rng.random(cap) < rate
        stops = np.flatnonzero(np.cumsum(correct_r) >= successes)
        for index in range(int(stops[0]) + 1 if len(stops) else cap):
            answer = problem.gold if correct_r[index] else "wrong"
            for name, value in zip(rows, (problem.id, index, bool(correct_r[index]), answer, "ok"), strict=True):
                rows[name].append(value)
    pool.append(rows)
    return pool


def test_a_fixed_plan_gives_what_its_parts_give(tmp_path):
    base, policy = make_pool(tmp_path / "a", hits=[5, 2, 0], k=8), make_pool(tmp_path / "b", hits=[8, 0, 1], k=8)
    found = step_metrics(count_pool(base), count_pool(policy), 0.7)
    parts = sample_metrics(policy.tally(), 0.7) | support_metrics(base.hits(), policy.hits())
    np.testing.assert_equal({tag: found[tag] for tag in parts}, parts)
    assert found["monitor/samples"] == 24


def test_a_plan_that_stops_early_has_the_same_tags_and_the_numbers_of_the_stopped_experiment(tmp_path):
    rates = np.array([0.9, 0.5, 0.1, 0.02, 0.0, 0.3])
    base, policy = (
        count_pool(stopped_pool(tmp_path / str(seed), rates * scale, seed)) for seed, scale in ((1, 1.0), (2, 0.5))
    )
    found = step_metrics(base, policy, 1.0)
    assert {metric.tag for metric in measured(CAP, 1.0)} - set(found) == {
        "monitor/seconds",
        "monitor/seconds_total",
        "monitor/failed",
    }
    hits = policy.hits
    curve = stopped_pass_at_k(hits.n_p, hits.correct_p, [1, 32], successes=SUCCESSES, cap=CAP).mean(axis=0)
    assert (found["pass_at_k/1"], found["pass_at_k/32"]) == pytest.approx(tuple(curve))
    sides = [(one.hits.n_p, one.hits.correct_p) for one in (base, policy)]
    noise = stopped_noise_test(*sides, successes=SUCCESSES, cap=CAP)
    for level in ("unit", "problem"):
        assert found[f"support/{level}/shrunk"] == noise.shrunk.observed
        assert found[f"support/{level}/p_shrunk"] == pytest.approx(noise.shrunk.p)
        assert 0 <= found[f"support/{level}/srr_hits5"] <= 1
    assert found["monitor/samples"] == hits.n_p.sum() < 6 * CAP
    assert math.isnan(found["support/leash/nscr"])  # its bounds are of a fixed number of samples


def test_pass_at_1_of_stopped_pools_is_unbiased_and_the_plain_fraction_would_not_be(tmp_path):
    rates = np.array([0.3] * 40)
    values, plain = [], []
    for seed in range(12):
        counted = count_pool(stopped_pool(tmp_path / str(seed), rates, seed, successes=2))
        values.append(pool_metrics(counted, 1.0)["pass_at_k/1"])
        plain.append(float(np.mean(counted.hits.correct_p / counted.hits.n_p)))
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - 0.3) < 4 * error
    assert np.mean(plain) - 0.3 > 4 * error


def test_below_five_successes_support_at_five_hits_is_undefined(tmp_path):
    base, policy = (count_pool(stopped_pool(tmp_path / str(s), [0.9, 0.1], s, successes=2)) for s in (1, 2))
    found = step_metrics(base, policy, 1.0)
    assert math.isnan(found["support/problem/srr_hits5"])
    assert not math.isnan(found["support/problem/srr"])


def test_the_answers_of_a_problem_are_one_unit_under_a_plan_that_stops_early(tmp_path):
    answers = [("0", "zero"), ("2", "two")]
    counted = count_pool(stopped_pool(tmp_path / "pool", [0.9, 0.9], 1, answers=answers))
    assert counted.hits.unit_answer == (None, None)
    assert math.isnan(pool_metrics(counted, 1.0)["support/distinct_correct"])


def test_samples_behind_the_last_success_as_a_part_drawn_again_leaves_them_are_not_counted(tmp_path):
    pool = stopped_pool(tmp_path / "pool", [0.0], 1, successes=2, cap=4)
    pool = Pool.create(tmp_path / "again", pool.spec, pool.problems)
    for indices in ([2, 3], [0, 1]):  # the first two were lost, and are now correct
        columns = {"problem_id": ["p0"] * 2, "index": indices, "correct": [True] * 2}
        pool.append({**columns, "answer": ["1"] * 2, "status": ["ok"] * 2})
    hits = count_pool(pool).hits
    assert (hits.n_p.tolist(), hits.correct_p.tolist()) == ([2], [2])


def test_an_incomplete_stopped_pool_and_two_plans_are_refused(tmp_path):
    pool = stopped_pool(tmp_path / "whole", [0.5, 0.0], 1)
    problems = make_problems(2)
    cut = Pool.create(tmp_path / "cut", make_spec(problems, CAP, plan=Plan(successes=SUCCESSES)), problems)
    cut.append({"problem_id": ["p0"], "index": [0], "correct": [False], "answer": ["1"], "status": ["ok"]})
    with pytest.raises(PoolError, match="cut"):
        count_pool(cut)
    fixed = make_pool(tmp_path / "fixed", hits=[5, 2], k=CAP)
    with pytest.raises(PoolError, match="plans"):
        step_metrics(count_pool(fixed), count_pool(pool), 1.0)


def test_a_base_that_solves_nothing_is_warned_of(tmp_path, capsys):
    count_base(make_pool(tmp_path / "a", hits=[0, 1, 0], k=4))
    assert "WARNING" not in capsys.readouterr().out
    count_base(make_pool(tmp_path / "b", hits=[0, 0, 0], k=4))
    assert "WARNING: the base solved none of 3 problems in 4 samples" in capsys.readouterr().out
