from dataclasses import replace

import numpy as np
import pytest

from offleash.callbacks.counted import Counted
from offleash.callbacks.metrics import support_metrics
from offleash.callbacks.step_zero import check_step_0
from offleash.eval.errors import MonitorError
from offleash.eval.pool.counts import Hits


def hits_of(correct_p, n=64):
    correct = np.asarray(correct_p)
    size = len(correct)
    ids = tuple(f"p{i}" for i in range(size))
    return Hits(ids, np.full(size, n), correct, np.arange(size), (None,) * size, correct)


def check(base, policy):
    one, other = (Counted(None, hits, None, 64, None) for hits in (base, policy))
    check_step_0(support_metrics(base, policy), one, other, "BASE", "STEP")


def test_two_samples_of_one_model_agree():
    rng = np.random.default_rng(0)
    rates = rng.beta(0.3, 1, 40)
    for _ in range(20):
        check(hits_of(rng.binomial(64, rates)), hits_of(rng.binomial(64, rates)))


def test_a_looser_verifier_is_found_although_every_problem_is_still_solved():
    rng = np.random.default_rng(0)
    base, policy = hits_of(rng.binomial(64, 0.2, 40)), hits_of(rng.binomial(64, 0.4, 40))
    assert min(base.correct_p.min(), policy.correct_p.min()) > 0
    with pytest.raises(MonitorError, match=r"BASE .*pass@1 0\.\d+ there.*STEP"):
        check(base, policy)


def test_units_that_a_stricter_verifier_drops_are_found_at_the_same_pass_at_1():
    base, policy = hits_of([30] * 10 + [0] * 10), hits_of([0] * 10 + [30] * 10)
    with pytest.raises(MonitorError, match="10 units lost, 10 gained"):
        check(base, policy)


def test_pools_without_a_correct_sample_agree():
    check(hits_of([0, 0]), hits_of([0, 0]))


def stopped(rates, rng, successes=5, cap=64):
    correct_pk = rng.random((len(rates), cap)) < np.asarray(rates)[:, None]
    wins_pk = np.cumsum(correct_pk, axis=1)
    n = np.where(wins_pk[:, -1] >= successes, (wins_pk >= successes).argmax(axis=1) + 1, cap)
    correct = np.minimum(wins_pk[:, -1], successes)
    hits = replace(hits_of(correct), n_p=n)
    return Counted(None, hits, None, cap, successes)


def test_under_a_plan_that_stops_early_one_model_agrees_with_itself_and_a_looser_verifier_is_found():
    rng = np.random.default_rng(0)
    rates, calm = rng.beta(0.5, 1, 64), {"support/unit/p_shrunk": 1.0, "support/unit/p_expanded": 1.0}
    calm |= {"support/unit/shrunk": 0.0, "support/unit/expanded": 0.0}
    for _ in range(20):
        check_step_0(calm, stopped(rates, rng), stopped(rates, rng), "BASE", "STEP")
    with pytest.raises(MonitorError, match="BASE"):
        check_step_0(calm, stopped(rates * 0.5, rng), stopped(rates, rng), "BASE", "STEP")
