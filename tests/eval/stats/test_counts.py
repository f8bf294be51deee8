"""Counts that cannot be are refused by name, in every estimator that takes counts."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offleash.eval.errors import ConfigError
from offleash.eval.stats.beta_binomial import fit_beta_binomial
from offleash.eval.stats.counts import check_counts, check_draws, check_threshold
from offleash.eval.stats.diversity import pcmd
from offleash.eval.stats.entropy import answer_entropies, answer_entropy, answer_entropy_at_k, answer_entropy_corrected
from offleash.eval.stats.noise import noise_test
from offleash.eval.stats.passk import cover_at_tau, majority_at_k, pass_at_k
from offleash.eval.stats.posterior import posterior_dynamics
from offleash.eval.stats.stopping import stopped_noise_test, stopped_pass_at_k
from offleash.eval.stats.subsets import expected_cells, in_support
from offleash.eval.stats.support import dynamics, dynamics_above
from offleash.eval.stats.unseen import unseen_mass

RNG = np.random.default_rng(0)
TAKERS: dict[str, Any] = {
    "dynamics": lambda x: dynamics([x], [0]),
    "dynamics of the policy": lambda x: dynamics([0], [x]),
    "dynamics_above": lambda x: dynamics_above([x], [0], 4, 4, 0.1),
    "dynamics_above draws": lambda x: dynamics_above([0], [0], x, 4, 0.1),
    "posterior_dynamics": lambda x: posterior_dynamics([x], [0], 4, 4, [0.1], rng=RNG, resamples=10),
    "posterior_dynamics draws": lambda x: posterior_dynamics([0], [0], 4, x, [0.1], rng=RNG, resamples=10),
    "cover_at_tau": lambda x: cover_at_tau([x], 4, 0.5),
    "cover_at_tau n": lambda x: cover_at_tau([0], x, 0.5),
    "cover_at_tau k": lambda x: cover_at_tau([0], 4, 0.5, x),
    "pcmd classes": lambda x: pcmd([0], [x], 1),
    "pcmd problem": lambda x: pcmd([x], [1], 1),
    "noise_test": lambda x: noise_test([x], [0], 4, 4),
    "noise_test draws": lambda x: noise_test([0], [0], 4, x),
    "noise_test k": lambda x: noise_test([0], [0], 4, 4, k=x),
    "stopped_noise_test": lambda x: stopped_noise_test(([4], [x]), ([4], [0]), successes=5, cap=4),
    "stopped_noise_test draws": lambda x: stopped_noise_test(([x], [0]), ([4], [0]), successes=5, cap=4),
    "stopped_noise_test cap": lambda x: stopped_noise_test(([4], [0]), ([4], [0]), successes=5, cap=x),
    "stopped_pass_at_k": lambda x: stopped_pass_at_k([4], [x], [1], successes=5, cap=4),
    "pass_at_k": lambda x: pass_at_k([x], [4], [1]),
    "pass_at_k n": lambda x: pass_at_k([0], [x], [1]),
    "pass_at_k k": lambda x: pass_at_k([0], [4], [x]),
    "majority_at_k": lambda x: majority_at_k([x, 1], [True], 1, rng=RNG),
    "answer_entropy": lambda x: answer_entropy([x]),
    "answer_entropy_corrected": lambda x: answer_entropy_corrected([x]),
    "answer_entropies": lambda x: answer_entropies([0], [x], 1),
    "answer_entropies problem": lambda x: answer_entropies([x], [1], 1),
    "answer_entropy_at_k k": lambda x: answer_entropy_at_k([2, 2], x),
    "unseen_mass": lambda x: unseen_mass([0], [x], [4]),
    "unseen_mass problem": lambda x: unseen_mass([x], [1], [4]),
    "unseen_mass n": lambda x: unseen_mass([0], [0], [x]),
    "unseen_mass k": lambda x: unseen_mass([0], [1], [4], [x]),
    "in_support": lambda x: in_support([x], 4, 4),
    "in_support n": lambda x: in_support([0], x, 1),
    "in_support k": lambda x: in_support([0], 4, x),
    "expected_cells": lambda x: expected_cells([x], [0], 4, 4, 4),
    "fit_beta_binomial": lambda x: fit_beta_binomial([x], 4),
    "fit_beta_binomial n": lambda x: fit_beta_binomial([0], x),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_no_estimator_takes_what_is_no_count(taker: str) -> None:
    for value in (math.nan, math.inf, -math.inf, 0.5, -1, -1.0, "3"):
        with pytest.raises(ConfigError):
            TAKERS[taker](value)


@pytest.mark.parametrize("taker", [name for name in TAKERS if " " not in name and "entrop" not in name])
def test_no_estimator_that_knows_the_draws_takes_more_hits_than_draws(taker: str) -> None:
    if taker in ("dynamics", "majority_at_k"):
        TAKERS[taker](5)  # these are not told how many draws there were
        return
    with pytest.raises(ConfigError):
        TAKERS[taker](5)


@given(st.lists(st.one_of(st.integers(-5, 10**6), st.floats(allow_nan=True), st.booleans()), max_size=6))
def test_a_list_passes_exactly_if_every_number_in_it_is_a_count(values: list[float]) -> None:
    good = all(math.isfinite(v) and v == int(v) and 0 <= v < 2**53 for v in values)
    if not good:
        with pytest.raises(ConfigError, match="hits"):
            check_counts("hits", values)
    else:
        assert check_counts("hits", values).tolist() == [int(v) for v in values]


def test_units_of_a_problem_share_its_draws() -> None:
    problem = np.array([7, 3, 7])
    assert check_draws("base", [6, 9, 4], 10, problem)[0].tolist() == [6, 9, 4]
    with pytest.raises(ConfigError, match="base hits: 11 hits of problem 7"):
        check_draws("base", [6, 9, 5], 10, problem)
    with pytest.raises(ConfigError, match="base draws"):
        check_draws("base", [1, 1, 1], [10, 10, 9], problem)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), None, "1", 1.5, 0, True])
def test_a_threshold_that_is_no_number_of_hits_is_refused(threshold: Any) -> None:
    with pytest.raises(ConfigError, match="threshold"):
        check_threshold(threshold)
