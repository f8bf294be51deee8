"""What a second sample of the base would show: closed forms, and the truth by simulation."""

import math

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.bands import BANDED, expected_moves, fewer_again, noise_bands, pass_at_1_band
from offleash.eval.stats.beta_binomial import BetaBinomial
from offleash.eval.stats.support import METRICS, dynamics


def world(rng: np.random.Generator, units: int) -> np.ndarray:
    """Rates as a trained base has them: a third far below reach, the others spread over three orders of magnitude."""
    return np.where(rng.random(units) < 1 / 3, 1e-7, 10 ** rng.uniform(-3, -0.3, units))


@pytest.mark.long
@pytest.mark.parametrize("threshold", [1, 5])
def test_a_second_sample_of_the_base_lies_in_its_bands_nine_times_in_ten(threshold: int) -> None:
    rng, n, inside = np.random.default_rng(3), 64, dict.fromkeys((*BANDED, "pass@1"), 0)
    for _ in range(40):
        rate = world(rng, 90)
        first, second = rng.binomial(n, rate), rng.binomial(n, rate)
        table, bands = dynamics(first, second, threshold), noise_bands(first, n, n, threshold)
        for name in BANDED:
            inside[name] += bands[name].low - 1e-9 <= getattr(table, name) <= bands[name].high + 1e-9
        band = pass_at_1_band(first, n, n)
        inside["pass@1"] += band.low <= float(second.mean() / n) <= band.high
    assert min(inside.values()) >= 33, inside  # of 40: below the 1 % quantile of a coverage of .93
    assert max(inside.values()) >= 36


def test_a_changed_policy_leaves_the_bands() -> None:
    rng, n = np.random.default_rng(0), 64
    rate = world(rng, 120)
    table = dynamics(rng.binomial(n, rate), rng.binomial(n, np.where(rate < 0.05, 0.0, rate)))
    bands = noise_bands(rng.binomial(n, rate), n, n)
    assert table.shrunk > bands["shrunk"].high
    assert table.expanded < bands["expanded"].low
    assert table.nscr < bands["nscr"].low


def test_the_value_is_the_expected_one_and_in_its_band() -> None:
    hits = np.array([1, 1, 2, 0, 0, 30, 22, 3])
    bands = noise_bands(hits, 64, 64)
    lost, gained = expected_moves(hits, np.full(8, 64), 64, hits > 0)
    assert bands["shrunk"].value == pytest.approx(lost)
    assert bands["expanded"].value == pytest.approx(gained)
    assert bands["srr"].value == pytest.approx(1 - lost / 6)
    assert all(band.low <= band.value <= band.high for band in bands.values())
    assert bands == noise_bands(hits, 64, 64)


def test_where_the_base_tells_nothing_there_is_no_band() -> None:
    for hits, n in (([1, 0], 1), ([], 64)):
        assert all(math.isnan(band.low) for band in noise_bands(hits, n, 64).values())
    assert math.isnan(pass_at_1_band([1, 0], 1, 64).high)
    none = noise_bands([0, 0, 0], 64, 64)
    # Without base support a second sample shows an NSCR of 1 or none at all: no noise to hold a policy against.
    assert all(math.isnan(value) for name in METRICS for value in none[name][:3])
    assert none["expanded"].value > 0
    assert none["shrunk"][:3] == (0.0, 0.0, 0.0)
    with pytest.raises(ConfigError, match="confidence"):
        noise_bands([1, 2], 64, 64, confidence=1.0)


def test_fewer_again_is_an_urn_sum() -> None:
    fit, k = BetaBinomial(0.7, 2.5), 9
    a, b = 0.7 + 3, 2.5 + 7

    def exactly(j: int) -> float:
        up = math.prod(a + i for i in range(j)) * math.prod(b + i for i in range(k - j))
        return math.comb(k, j) * up / math.prod(a + b + i for i in range(k))

    for threshold in (1, 2, 5):
        assert fewer_again(fit, 3, 10, k, threshold) == pytest.approx(sum(map(exactly, range(threshold))), rel=1e-12)
    assert fewer_again(fit, 3, 10, 2, 5) == pytest.approx(1.0)


@pytest.mark.parametrize(("n", "again", "threshold"), [(64, 64, 1), (64, 256, 1), (256, 64, 1), (128, 128, 5)])
@pytest.mark.parametrize("listed", [True, False])
def test_it_is_the_mean_of_many_second_samples(n: int, again: int, threshold: int, listed: bool) -> None:
    rng = np.random.default_rng(5)
    found, truth = [], []
    for _ in range(20):
        rate = rng.beta(0.4, 8.0, 1500)
        hits = rng.binomial(n, rate)
        shown = hits > 0 if not listed else np.ones(hits.size, bool)
        held = hits >= threshold
        moves = expected_moves(hits[shown], np.full(shown.sum(), n), again, held[shown], threshold, listed=listed)
        second = np.array([rng.binomial(again, rate) for _ in range(20)]) >= threshold
        found.append(moves)
        truth.append([(held & ~second).sum(axis=1).mean(), (~held & second).sum(axis=1).mean()])
    # Of four times the draws, what matters are rates that n draws tell little about.
    tolerance = (0.25 if again > n else 0.05) if listed else 0.12
    assert np.mean(found, axis=0) == pytest.approx(np.mean(truth, axis=0), rel=tolerance)


def test_units_out_of_reach_are_not_taken_for_rare_ones() -> None:
    """Half of the rates are next to zero: one Beta for all units would expect half as many gains again."""
    rng, found, truth = np.random.default_rng(2), [], []
    for _ in range(30):
        rate = np.where(rng.random(300) < 0.5, 1e-8, 10 ** rng.uniform(-2.5, -0.5, 300))
        hits = rng.binomial(64, rate)
        second = rng.binomial(64, rate, size=(20, 300)) > 0
        found.append(expected_moves(hits, np.full(300, 64), 64, hits > 0))
        truth.append([((hits > 0) & ~second).sum(axis=1).mean(), ((hits == 0) & second).sum(axis=1).mean()])
    assert np.mean(found, axis=0) == pytest.approx(np.mean(truth, axis=0), rel=0.1)


def test_at_k_below_n_the_fraction_in_support_counts() -> None:
    hits, n = np.array([0, 1, 5, 40]), np.full(4, 64)
    whole = expected_moves(hits, n, 16, np.array([0.0, 1.0, 1.0, 1.0]))
    half = expected_moves(hits, n, 16, np.array([0.0, 0.5, 0.5, 0.5]))
    assert half.shrunk == pytest.approx(whole.shrunk / 2)
    assert half.expanded > whole.expanded


def test_nothing_and_one_draw() -> None:
    none = np.array([], dtype=np.int64)
    assert expected_moves(none, none, 4, none) == (0.0, 0.0)
    one = expected_moves(np.array([1, 0]), np.array([1, 1]), 1, np.array([1, 0]))
    assert all(map(math.isnan, one))
    unseen = expected_moves(np.array([0, 0]), np.array([8, 8]), 8, np.array([0, 0]), listed=False)
    assert all(map(math.isnan, unseen))
