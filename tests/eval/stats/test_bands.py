"""Noise bands: the truth by second samples of worlds whose rates are known."""

import math

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.bands import BANDED, noise_bands, pass_at_1_band
from offleash.eval.stats.predictive import expected_moves
from offleash.eval.stats.support import dynamics


def world(rng: np.random.Generator, units: int) -> np.ndarray:
    """Rates as a trained base has them: a third far below reach, the others spread over three orders of magnitude."""
    return np.where(rng.random(units) < 1 / 3, 1e-7, 10 ** rng.uniform(-3, -0.3, units))


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
    assert math.isnan(none["srr"].low)  # no base support: undefined
    assert none["shrunk"][:3] == (0.0, 0.0, 0.0)
    with pytest.raises(ConfigError, match="confidence"):
        noise_bands([1, 2], 64, 64, confidence=1.0)
