"""A number that is shown in several places has one interval, and noise has a reference at every threshold."""

import numpy as np
import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.comparison.result import PolicyResult
from offleash.eval.pool.testing import make_pool


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> PolicyResult:
    root = tmp_path_factory.mktemp("pools")
    rng = np.random.default_rng(0)
    for name, shift in (("base", 0), ("policy", -2)):
        make_pool(root / name, np.clip(rng.integers(0, 9, 40) + shift, 0, 8).tolist())
    return compare(root / "base", root / "policy", resamples=200).policies[0]


def test_accuracy_is_pass_at_1_with_its_intervals(result: PolicyResult) -> None:
    curves, accuracy = result.overall.curves, result.overall.rows["avg"]
    assert (accuracy.base, accuracy.policy) == (curves.base[0], curves.policy[0])
    difference = curves.difference[0]  # base - policy
    assert accuracy.difference[:3] == (-difference.value, -difference.high, -difference.low)


def test_nscr_has_the_interval_that_the_verdict_rests_on(result: PolicyResult) -> None:
    assert result.leash is not None
    for scope in (result.overall, *result.tasks):
        assert scope.units.any_hit.estimates["nscr"] == result.leash.units.against.nscr
        assert scope.problem_level.any_hit.estimates["nscr"] == result.leash.problem_level.against.nscr


def test_the_noise_of_a_threshold_below_one_hit_is_that_of_support(result: PolicyResult) -> None:
    lowest = result.sensitivity[0]
    assert lowest.eps < 1 / 8
    assert lowest.noise == pytest.approx(result.overall.units.any_hit.noise_metrics, abs=1e-8)
    assert all(0 < row.noise["srr"] <= 1 for row in result.sensitivity)
