"""Sampling parameters, plans and seeds: what is refused, what JSON keeps, and that no seed ever changes."""

from typing import Any

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.sampling import Plan, Sampling, derive_seed, round_seed, sample_seed


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 1.0},
        {"repetition_penalty": 0.0},
        {"max_new_tokens": 0},
        {"stop": ("",)},
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        Sampling(**{"max_new_tokens": 8, **change})


@pytest.mark.parametrize("change", [{"top_p": 0.95}, {"top_k": 20}, {"min_p": 0.1}, {"repetition_penalty": 1.1}])
def test_the_defaults_leave_the_distribution_as_it_is_and_any_knob_does_not(change: dict[str, Any]) -> None:
    assert Sampling(max_new_tokens=8, temperature=0.6).untruncated
    assert not Sampling(max_new_tokens=8, **change).untruncated


@pytest.mark.parametrize("plan", [Plan(), Plan(successes=5), Plan(scored_at_temperature=0.6)])
def test_a_plan_survives_json_and_unknown_keys_are_refused(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(ConfigError, match="draws"):
        Plan.from_json({**plan.to_json(), "draws": 3})


def test_the_json_of_a_plan_is_that_of_pools_on_disk() -> None:
    assert Plan().to_json() == {"kind": "fixed"}
    assert Plan(successes=5).to_json() == {"kind": "until", "successes": 5}


def test_seeds_are_those_of_every_earlier_version() -> None:
    assert sample_seed(0, "p1", 0) == 4033924140115444
    assert derive_seed(0, 42, "base") == 4161377370
    assert round_seed(7, 3) == 1698595815


def test_a_samples_seed_is_its_own_and_the_next_one_follows() -> None:
    seeds = {sample_seed(s, f"p{p}", index) for s in range(3) for p in range(50) for index in range(1024)}
    assert len(seeds) == 3 * 50 * 1024
    assert max(seeds) < 2**53
    assert sample_seed(0, "p1", 7) == sample_seed(0, "p1", 0) + 7
