"""On softmax bandits, where the theory is exact: who shares plain's path and who leaves it."""

import itertools
import math

import numpy as np
import pytest

from offleash.train.variants.overlays import find_overlays
from offleash.train.variants.planned.exact import ExactPath
from offleash.train.variants.planned.inertness import (
    ANSWER_AWARE,
    REWARD_ONLY,
    Curves,
    departure_of,
    distances,
    entropies,
    forward_kl,
    moved,
)

G = 8


def binomial(n, c, p):
    return math.comb(n, c) * p**c * (1 - p) ** (n - c)


def contrast(advantage, p):
    """E[A | correct] - E[A | wrong] of a rollout in a group of G, over how many of the others are correct."""
    given = [sum(binomial(G - 1, c, p) * advantage(r, c + r) for c in range(G)) for r in (1, 0)]
    return given[0] - given[1]


def grpo(r, c):
    mean = c / G
    return (r - mean) / (math.sqrt(mean * (1 - mean)) + 1e-4) if 0 < c < G else 0.0


def pass_at_4(r, c):
    """Of subsets of 4 with the rollout, how many more have a correct one than among all."""
    any_of = 1 - math.comb(G - c, 4) / math.comb(G, 4)
    own = 1.0 if r else 1 - math.comb(G - c - 1, 3) / math.comb(G - 1, 3)
    return own - any_of


ADVANTAGES = {
    "plain": grpo,
    "maxrl": lambda r, c: (r - c / G) / (c / G) if c else 0.0,
    "nsr": lambda r, c: -1.0 if not r else 0.0,
    "focal": lambda r, c: (1 - c / G) ** 2 * grpo(r, c),
    "pass_at_k": pass_at_4,
}


def flow(start_py, correct, step, extra=None, steps=400, keep=20, rng=None, advantage=grpo):
    """Expected policy gradient on the logits of independent problems, in small steps. Answers 0..correct-1 are right.

    `extra` adds a term of its own to the gradient; `rng` multiplies every coordinate's step by noise.
    """
    logits = np.log(start_py)
    right = np.arange(start_py.shape[1]) < correct
    rows = []
    for t in range(steps + 1):
        pi = np.exp(logits - logits.max(axis=1, keepdims=True))
        pi /= pi.sum(axis=1, keepdims=True)
        if t % keep == 0:
            rows.append(pi[:, :correct].ravel())
        passed = pi[:, right].sum(axis=1, keepdims=True)
        c = np.array([[contrast(advantage, float(p))] for p in passed[:, 0]])
        gradient = c * pi * (right - passed)
        if extra is not None:
            gradient = gradient + extra(pi, right)
        noise = 1.0 if rng is None else 1 + 0.5 * rng.normal(size=pi.shape)
        logits = logits + step * gradient * noise
    problems = start_py.shape[0]
    steps_t = tuple(range(0, steps + 1, keep))
    return ExactPath(steps_t, np.array(rows), np.repeat(np.arange(problems), correct))


@pytest.fixture(scope="module")
def start():
    """Twelve problems of nine answers each, of which four will be correct."""
    return np.random.default_rng(0).dirichlet(np.full(9, 0.7), 12)


def pull_up(pi, right):
    """The likelihood of every correct answer alike."""
    target = np.where(right, 1 / right.sum(), 0.0)
    return 0.3 * (target - pi)


def test_the_expected_gradient_of_every_reward_only_advantage_is_a_multiple_of_that_of_p():
    """By enumerating all groups of 3 rollouts over 4 answers, two of them correct."""
    pi = np.array([0.2, 0.1, 0.4, 0.3])
    right = np.array([1, 1, 0, 0])
    for advantage in (lambda r, c: r - c / 3, lambda r, c: (r - c / 3) / max(c, 1), lambda r, c: -(1 - r) * (c + 1)):
        gradient = np.zeros(4)
        for group in itertools.product(range(4), repeat=3):
            c = right[list(group)].sum()
            chance = pi[list(group)].prod()
            for y in group:
                gradient += chance * advantage(right[y], c) * (np.eye(4)[y] - pi)
        of_p = pi * (right - pi @ right)
        assert gradient / gradient[0] == pytest.approx(of_p / of_p[0])


PACES = {"plain": 0.03, "maxrl": 0.03, "nsr": 0.06, "focal": 0.3, "pass_at_k": 0.3}
"""So that every arm gets somewhere in 400 steps."""


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_reward_only_arms_share_one_path_whatever_their_pace(start, name):
    """Up to how well a curve is known between measurements; maxrl weighs problems quite differently."""
    plain = Curves(flow(start, 4, 0.02))
    other = Curves(flow(start, 4, PACES[name], advantage=ADVANTAGES[name]))
    apart_p, moved_p = distances(plain, other), moved(plain)
    assert (~np.isnan(apart_p)).sum() >= 6
    assert np.nanmean(apart_p) < 0.02 * np.nanmean(moved_p)


def test_an_arm_that_pulls_up_every_answer_leaves_the_path(start):
    plain, aware = Curves(flow(start, 4, 0.02)), Curves(flow(start, 4, 0.02, extra=pull_up))
    assert np.nanmean(distances(plain, aware)) > 0.3 * np.nanmean(moved(plain))


def test_the_likely_answers_win_under_plain(start):
    plain = flow(start, 4, 0.02)
    curves = Curves(plain)
    first, last = (entropies(curves.conditional_u(passed_p), plain.problem_u) for passed_p in curves.fit_tp[[0, -1]])
    assert last.mean() < first.mean()


@pytest.fixture(scope="module")
def noisy():
    """Eight seeds of plain, a twin of it, a reward-only arm and an answer-aware one, on 30 problems."""
    rng = np.random.default_rng(1)
    start = rng.dirichlet(np.full(8, 0.6), 30)

    def runs(**of):
        return {seed: flow(start, 4, 0.04, steps=100, keep=10, rng=rng, **of) for seed in range(8)}

    return runs(), runs(), runs(advantage=ADVANTAGES["maxrl"]), runs(extra=pull_up)


def test_the_statistic_holds_where_nothing_differs_and_finds_what_leaves(noisy):
    plain, twin, reward_only, aware = noisy
    for arm, runs in (("low_lr", twin), ("maxrl", reward_only)):
        found = departure_of(arm, runs, plain)
        assert (found.word, found.word_corrected, found.entropy_word) == ("held", "held", "held")
        assert abs(found.departure.value) < 0.06
        assert abs(found.corrected.value) < 0.06
        assert found.problems >= 10
        assert found.entropy_from_base.high < 0
    left = departure_of("rehearsal", aware, plain)
    assert (left.word, left.word_corrected, left.entropy_word) == ("held", "held", "")
    assert left.entropy.low > 0
    assert left.departure.value > 0.2
    assert left.corrected.value > 0.2
    assert left.forward_kl.high < 0
    assert departure_of("maxrl", aware, plain).word == "refuted"  # what is called reward-only and is not
    assert departure_of("placebo", aware, plain).word == ""  # nothing was predicted


def test_a_slower_arm_has_no_departure_where_the_number_first_defined_is_too_low():
    rng = np.random.default_rng(5)
    start = rng.dirichlet(np.full(8, 0.6), 40)
    plain, slow = (
        {seed: flow(start, 4, pace, steps=100, keep=10, rng=rng) for seed in range(8)} for pace in (0.04, 0.015)
    )
    found = departure_of("low_lr", slow, plain)
    assert found.departure.high < -0.02
    assert abs(found.corrected.value) < 0.02


def test_a_problem_that_fell_and_came_back_was_not_learned():
    """Its curve made monotone starts below the base, and would show a rise."""
    fell = np.array([[0.25, 0.25], [0.15, 0.15], [0.15, 0.15], [0.2, 0.25]])
    rose = np.array([[0.25, 0.25], [0.3, 0.25], [0.3, 0.3], [0.35, 0.3]])
    runs = [Curves(ExactPath((0, 1, 2, 3), rows, np.zeros(2, dtype=np.int64))) for rows in (fell, rose)]
    assert np.isnan(distances(runs[0], runs[0])).all()
    assert np.isnan(distances(*runs)).all()
    assert not np.isnan(distances(runs[1], runs[1])).any()


def drifting(start, rng, noise):
    """Eight runs of one mean path, each with a drift of its own, which is cheap: it stands for whatever seeds do."""
    paths = {}
    for seed in range(8):
        rows = [np.log(start[:, :4])]
        drift = rng.normal(size=rows[0].shape)
        grown = [rows[0] + part * (0.8 + noise * drift) for part in (0.25, 0.5, 0.75, 1.0)]
        total = np.array([np.exp(log) for log in (rows[0], *grown)])
        total /= np.maximum(total.sum(axis=2, keepdims=True), 1.0)
        paths[seed] = ExactPath((0, 1, 2, 3, 4), total.reshape(5, -1), np.repeat(np.arange(len(start)), 4))
    return paths


def test_its_interval_is_calibrated_where_nothing_differs():
    """Seeds and noise anew each time; the truth is 0."""
    rng = np.random.default_rng(2)
    start = rng.dirichlet(np.full(8, 0.6), 30)
    departures = [departure_of("low_lr", drifting(start, rng, 0.5), drifting(start, rng, 0.5)) for _ in range(20)]
    for found in ([each.departure for each in departures], [each.corrected for each in departures]):
        assert np.mean([e.low <= 0 <= e.high for e in found]) >= 0.8
        assert abs(np.mean([e.value for e in found])) < 0.02


@pytest.mark.parametrize(("noise", "sign"), [(0.25, -1), (1.0, 1)])
def test_an_arm_that_only_scatters_otherwise_departs_by_the_number_first_defined(noise, sign):
    """Twice the scatter is itself a difference of distributions, of .06; the mean paths are the same."""
    rng = np.random.default_rng(3)
    start = rng.dirichlet(np.full(8, 0.6), 30)
    found = [departure_of("low_lr", drifting(start, rng, noise), drifting(start, rng, 0.5)) for _ in range(5)]
    assert sign * np.mean([each.departure.value for each in found]) > 0.1
    assert abs(np.mean([each.corrected.value for each in found])) < 0.08
    assert "refuted" not in {each.word_corrected for each in found}


def test_what_learned_too_little_is_not_compared(noisy):
    plain, *_ = noisy
    still = {s: ExactPath(p.steps[:2], p.probability_tu[:2], p.problem_u) for s, p in plain.items()}
    found = departure_of("low_lr", still, plain)
    assert found.word == "not compared"
    assert math.isnan(found.departure.value)
    assert departure_of("low_lr", {0: plain[0]}, plain).word == "not compared"


def test_k3_in_the_loss_has_the_expected_gradient_of_forward_kl():
    """E_pi[grad of b/pi - log(b/pi) - 1], samples fixed, against grad KL(b || pi) and grad KL(pi || b)."""
    base, logits = np.array([0.5, 0.3, 0.15, 0.05]), np.array([-1.0, -0.4, 2.0, 0.1])

    def policy(x):
        return np.exp(x) / np.exp(x).sum()

    def slope(of):
        return np.array([(of(logits + h) - of(logits - h)) / 2e-6 for h in 1e-6 * np.eye(4)])

    sampled = policy(logits)
    k3 = slope(lambda x: float(sampled @ (base / policy(x) - np.log(base / policy(x)) - 1)))
    forward = slope(lambda x: float(base @ np.log(base / policy(x))))
    reverse = slope(lambda x: float(policy(x) @ np.log(policy(x) / base)))
    assert k3 == pytest.approx(forward, abs=1e-6)
    assert np.abs(k3 - reverse).max() > 0.05


def test_forward_kl_is_worked_by_hand():
    path = ExactPath((0, 10), np.array([[0.2, 0.1, 0.3], [0.4, 0.05, 0.3]]), np.array([0, 0, 1]))
    expected = (0.2 * math.log(0.5) + 0.1 * math.log(2)) / 2
    assert forward_kl(path, float(path.correct_tp()[-1].mean())) == pytest.approx(expected)


def test_the_kinds_name_arms_that_exist():
    find_overlays([arm for arm in (*REWARD_ONLY, *ANSWER_AWARE) if arm != "equal_samples"])
    assert not set(REWARD_ONLY) & set(ANSWER_AWARE)
