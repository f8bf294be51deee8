"""A plan that stops early, however its samples are drawn, ends where `eval.stats.stopping` says it does."""

import numpy as np
import pytest

from offleash.callbacks.policy.early_stop import EarlyStop, next_ends
from offleash.callbacks.policy.stream import Wanted, is_due
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_problems, make_spec
from offleash.eval.sampling import Plan

RATES = (0.95, 0.5, 0.2, 0.05, 0.01, 0.0)
CAP, BLOCK = 128, 8


def empty_pool(path, successes, rates=RATES):
    problems = make_problems(len(rates))
    return Pool.create(path, make_spec(problems, CAP, plan=Plan(successes=successes)), problems)


def sample(pool, problem, index, correct):
    return Sample(pool.problem_ids[problem], int(index), "x", bool(correct), "ok")


def filled(pool, correct_pk, rng, part=24):
    """Drawn as the monitor does, the samples of a round arriving in any order and in parts; how many were drawn."""
    drawn = rounds = 0
    while True:
        early = EarlyStop(Ledger(pool), pool.problem_ids)
        wanted = [(p, i) for p, indices in enumerate(early.missing(BLOCK)) for i in indices.tolist()]
        if not wanted:
            return drawn, rounds
        rng.shuffle(wanted)
        drawn, rounds = drawn + len(wanted), rounds + 1
        for start in range(0, len(wanted), part):
            pool.append(early.keep(sample(pool, p, i, correct_pk[p, i]) for p, i in wanted[start : start + part]))


@pytest.mark.parametrize("successes", [1, 5, 16])
def test_a_pool_holds_each_problem_up_to_its_last_success_whatever_the_order_of_arrival(tmp_path, successes):
    rng = np.random.default_rng(successes)
    for trial in range(5):
        correct_pk = rng.random((len(RATES), CAP)) < np.array(RATES)[:, None]
        pool = empty_pool(tmp_path / f"{trial}", successes)
        drawn, rounds = filled(pool, correct_pk, rng)
        wins_pk = np.cumsum(correct_pk, axis=1)
        stop_p = np.where(wins_pk[:, -1] >= successes, (wins_pk >= successes).argmax(axis=1) + 1, CAP)
        hits = pool.hits()
        np.testing.assert_array_equal(hits.n_p, stop_p)
        np.testing.assert_array_equal(hits.correct_p, np.minimum(wins_pk[:, -1], successes))
        assert Ledger(pool).is_complete
        assert stop_p.sum() <= drawn < len(RATES) * CAP
        assert rounds <= 6  # of up to 128 samples


def test_what_a_kill_left_is_completed_and_samples_behind_a_gap_are_not_taken_for_the_end(tmp_path):
    pool = empty_pool(tmp_path / "pool", 2, rates=(0.5,))
    early = EarlyStop(Ledger(pool), pool.problem_ids)
    assert early.keep([sample(pool, 0, i, True) for i in (1, 2, 3)]) == []  # sample 0 may be a success, too
    kept = early.keep([sample(pool, 0, 0, False)])
    assert [one.index for one in kept] == [0, 1, 2]
    assert early.keep([sample(pool, 0, 4, True)]) == []
    pool.append(kept[:2])  # and killed
    again = EarlyStop(Ledger(pool), pool.problem_ids)
    assert again.missing(BLOCK)[0][0] == 2
    assert [one.index for one in again.keep([sample(pool, 0, i, True) for i in (2, 3)])] == [2]


def test_a_problem_is_drawn_as_far_as_its_rate_asks_for():
    draws, wins = np.array([0, 16, 16, 16, 64, 120]), np.array([0, 4, 1, 0, 0, 4])
    ends = next_ends(draws, wins, 5, CAP, BLOCK)
    assert ends.tolist() == [8, 32, 128, 128, 128, 128]
    assert next_ends(np.array([0]), np.array([0]), 20, 16, 8).tolist() == [16]


def test_a_stream_waits_with_judging_for_enough_completions_and_longer_for_a_slow_verifier():
    assert is_due(waiting=1, running=64, spent=0.0, elapsed=0.0)
    assert not is_due(waiting=1, running=65, spent=0.0, elapsed=10.0)
    assert not is_due(waiting=500, running=1, spent=2.0, elapsed=10.0)
    assert is_due(waiting=500, running=1, spent=2.0, elapsed=20.0)


def test_all_that_runs_can_be_taken_back_at_once():
    wanted = Wanted([(0, 0), (0, 1), (0, 2), (1, 0)], {0: 1, 1: 1})
    wanted.end([0])
    assert wanted.take_back([0]) == {1, 2}
    assert wanted.take_back_all() == {3}
    assert wanted.running == 0


def streamed(pool, correct_pk, rng, processes, expected_p=None):
    """What each process of a stream draws, in any order of arrival; how many draws were not taken back."""
    early = EarlyStop(Ledger(pool), pool.problem_ids, expected_p)
    round_ = early.stream(processes, BLOCK, 0)
    kept, ended = [], 0
    for share in round_.stream.shares:
        slots = [(block.problem, block.start + i) for block in share for i in range(block.size)]
        wanted, places = Wanted(slots, round_.stream.needed), list(range(len(slots)))
        while places:
            place = places.pop(rng.integers(min(len(places), 12)))  # an engine of 12 places
            wanted.end([place])
            gone = wanted.take_back([place] if correct_pk[slots[place]] else [])
            places = [other for other in places if other not in gone]
        assert wanted.running == 0
        ended += len(wanted.ended)
        kept += [sample(pool, *slots[place], correct_pk[slots[place]]) for place in sorted(wanted.ended)]
    pool.append(early.keep(kept))
    return round_, ended


@pytest.mark.parametrize("processes", [1, 3])
def test_a_stream_has_all_that_the_plan_needs_and_takes_back_most_of_the_rest(tmp_path, processes):
    rng = np.random.default_rng(processes)
    rates = np.array([0.9, 0.6, 0.4, 0.3, 0.1, 0.05, 0.0])
    for trial in range(5):
        correct_pk = rng.random((len(rates), CAP)) < rates[:, None]
        pool = empty_pool(tmp_path / f"{trial}", 4, rates)
        assert EarlyStop(Ledger(pool), pool.problem_ids).stream(1, BLOCK, 0) is None  # what it needs is not known yet
        first = EarlyStop(Ledger(pool), pool.problem_ids)
        pool.append(first.keep(sample(pool, p, i, correct_pk[p, i]) for p in range(len(rates)) for i in range(4)))
        round_, ended = streamed(pool, correct_pk, rng, processes)
        wins_pk = np.cumsum(correct_pk, axis=1)
        stop_p = np.where(wins_pk[:, -1] >= 4, (wins_pk >= 4).argmax(axis=1) + 1, CAP)
        np.testing.assert_array_equal(pool.hits().n_p, stop_p)
        assert Ledger(pool).is_complete
        blocks = [block for share in round_.stream.shares for block in share]
        assert sum(block.size for block in set(blocks)) == len(round_.stream.needed) * (CAP - 4)
        assert all(round_.stream.shares)
        assert ended < 0.75 * sum(block.size for block in blocks)


@pytest.mark.parametrize("known", [(0.9, 0.6, 0.3, 0.1, 0.05, 0.01), (0.01, 0.05, 0.1, 0.3, 0.6, 0.9)])
def test_with_expected_rates_right_or_wrong_all_is_one_stream_that_ends_where_the_plan_does(tmp_path, known):
    rng, ended = np.random.default_rng(0), 0
    rates = np.array([0.9, 0.6, 0.3, 0.1, 0.05, 0.01])
    for trial in range(10):
        correct_pk = rng.random((len(rates), CAP)) < rates[:, None]
        pool = empty_pool(tmp_path / f"{trial}", 4, rates)
        ended += streamed(pool, correct_pk, rng, 2, np.array(known))[1]
        wins_pk = np.cumsum(correct_pk, axis=1)
        stop_p = np.where(wins_pk[:, -1] >= 4, (wins_pk >= 4).argmax(axis=1) + 1, CAP)
        np.testing.assert_array_equal(pool.hits().n_p, stop_p)
        assert Ledger(pool).is_complete
    assert ended < 0.8 * 10 * len(rates) * CAP


def test_a_stream_goes_first_as_far_as_each_problem_is_expected_to_need(tmp_path):
    pool = empty_pool(tmp_path / "pool", 4, rates=(0.5, 0.05))
    round_ = EarlyStop(Ledger(pool), pool.problem_ids, np.array([0.5, 0.1])).stream(1, BLOCK, 3)
    assert round_.scored == 3
    # 20 and 100 draws are 2.5 times what 4 successes take.
    places = [(block.problem, block.start) for block in round_.blocks]
    assert places[:4] == [(0, 0), (1, 0), (1, 8), (1, 16)]
    assert places.index((0, 16)) < places.index((1, 88)) < places.index((0, 24))
    assert len(places) == 2 * CAP // BLOCK


def test_fewer_problems_than_processes_or_a_gap_are_not_streamed(tmp_path):
    pool = empty_pool(tmp_path / "pool", 2, rates=(0.0, 0.0))
    pool.append([sample(pool, 0, 0, False), sample(pool, 1, 0, False)])
    assert EarlyStop(Ledger(pool), pool.problem_ids).stream(2, BLOCK, 0) is not None
    assert EarlyStop(Ledger(pool), pool.problem_ids).stream(3, BLOCK, 0) is None
    pool.append([sample(pool, 0, 2, True)])
    assert EarlyStop(Ledger(pool), pool.problem_ids).stream(1, BLOCK, 0) is None
