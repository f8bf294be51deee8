"""Arguments under which a method would do nothing, the opposite, or give NaN."""

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.explorers import load_explorers


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("entropy_advantage", {"kappa": 0.0}),
        ("entropy_advantage", {"kappa": -1.0}),
        ("entropy_advantage", {"alpha": 0.0}),
        ("clip_cov", {"ratio": 0.0}),
        ("clip_cov", {"low": 5.0}),
        ("kl_cov", {"ratio": 0.0}),
        ("kl_cov", {"ratio": 1.5}),
        ("kl_cov", {"weight": 0.0}),
        ("placebo", {"weight": 0.0}),
        ("outcome_batch", {"weight": -0.2}),
        ("outcome_ucb", {"weight": 0.0}),
        ("ucpo", {"tau": 2.0}),
        ("unlikeliness", {"beta_rank": 1.5}),
        ("outcome_batch", {"weight": float("inf")}),
        ("outcome_ucb", {"baseline": float("nan")}),
        ("focal", {"gamma": 0.0}),
        ("focal", {"gamma": float("nan")}),
        ("w_reinforce", {"lam": -1.0}),
        ("w_reinforce", {"negative": -1.0}),
        ("pkpo", {"scale": 0.0}),
        ("dynamic_sampling", {"max_batches": 1}),
        ("dynamic_sampling", {"budget": 0.0}),
        ("seeding", {"gamma": 0.0}),
        ("anchor", {"eta": -1.0}),
        ("anchor", {"gate": float("nan")}),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name, arguments):
    (argument, value), *_ = arguments.items()
    load_explorers({name: {}})
    with pytest.raises(ConfigError, match=f"{argument} of explorer {name} must be .*got {value}"):
        load_explorers({name: arguments})


def test_w_reinforce_with_nothing_to_learn_from_is_refused():
    with pytest.raises(ConfigError, match="train on nothing"):
        load_explorers({"w_reinforce": {"lam": 0.0, "negative": 0.0}})
