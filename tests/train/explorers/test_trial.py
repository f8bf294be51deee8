"""Explorers tried before a run: what goes wrong is named with its hook and case, and ours pass."""

import copy
from typing import Any

import pytest
import torch
from trl import GRPOConfig

from offleash.eval.errors import ConfigError
from offleash.train.explorers import EXPLORERS, find_explorer, load_explorers
from offleash.train.explorers.base import Explorer, all_correct
from offleash.train.explorers.trial import try_explorer, try_instance


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> GRPOConfig:
    folder = str(tmp_path_factory.mktemp("run"))
    return GRPOConfig(
        output_dir=folder, num_generations=4, per_device_train_batch_size=8, beta=0.01, bf16=False, use_cpu=True
    )


class Own(Explorer):
    """`fault` names what it does wrong."""

    needs_logps = True

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def rewards(self, rollouts: Any) -> Any:
        if self.fault == "wrong shape of rewards":
            return rollouts.rewards_pg.flatten()
        return rollouts.rewards_pg

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> Any:
        rewards_pg = rollouts.rewards_pg
        faults = {
            "wrong shape": lambda: advantages_pg.mean(1),
            "a list": lambda: advantages_pg.tolist(),
            "integers": lambda: advantages_pg.long(),
            "gradient": lambda: advantages_pg * torch.ones(1, requires_grad=True),
            "divided by the failures": lambda: advantages_pg / rewards_pg.isnan().sum(1, keepdim=True),
            "nan of an all-wrong group": lambda: advantages_pg + 0 * (rewards_pg / rewards_pg.nansum(1, keepdim=True)),
            "in place": lambda: advantages_pg.add_(1.0),
            "rewards in place": lambda: advantages_pg + 0 * rewards_pg.nan_to_num_(),
            "logps in place": lambda: advantages_pg + 0 * rollouts.logps_pg.mul_(2.0).nan_to_num(),
            "truncated": lambda: torch.where(all_correct(rewards_pg), 0.0, rollouts.logps_pg),
            "answers": lambda: advantages_pg + len(rollouts.answers_pg[0][0]),
            "one group": lambda: advantages_pg + rewards_pg.nan_to_num()[1, 0],
            "several groups": lambda: advantages_pg + float(rewards_pg.nan_to_num().reshape(1, 4).sum()),
            "splits": lambda: advantages_pg + torch.arange(4) * all_correct(rewards_pg),
        }
        return faults[self.fault]() if self.fault in faults else advantages_pg

    def token_advantages(self, tokens: Any) -> Any:
        faults = {
            "token gradient": lambda: tokens.advantages_bt * tokens.logps_bt,
            "token shape": lambda: tokens.advantages_bt[:, 0],
            "tokens in place": lambda: tokens.advantages_bt.mul_(2),
        }
        return faults[self.fault]() if self.fault in faults else tokens.advantages_bt

    def extra_loss(self, tokens: Any, model: Any) -> Any:
        faults = {"loss": lambda: tokens.logps_bt, "nan loss": lambda: tokens.token_mean(tokens.logps_bt * torch.nan)}
        return faults[self.fault]() if self.fault in faults else tokens.token_mean(-tokens.logps_bt)

    def traces(self, problem_ids: Any) -> Any:
        return [] if self.fault == "traces" else [None] * len(problem_ids)

    def metrics(self) -> Any:
        return {"size": "large"} if self.fault == "metrics" else {"size": 1.0}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("wrong shape of rewards", r"rewards must return .* \(1, 4\).*one group, all correct"),
        ("wrong shape", r"advantages must return .*one group"),
        ("a list", "advantages must return a tensor"),
        ("integers", r"advantages .*torch\.int64"),
        ("gradient", "advantages .*gradient"),
        ("divided by the failures", "advantages returned nan.*one group, all correct"),
        ("nan of an all-wrong group", "advantages returned nan.*one group, all wrong"),
        ("in place", "advantages modified advantages_pg in place"),
        ("rewards in place", "advantages modified rewards_pg in place.*verifier failed"),
        ("logps in place", "advantages modified logps_pg in place"),
        ("truncated", "advantages returned nan.*truncated"),
        ("answers", "advantages raised TypeError.*without an answer"),
        ("one group", "advantages raised IndexError.*one group"),
        ("several groups", "advantages raised RuntimeError.*several groups"),
        ("splits", "all correct.*one group, all correct"),
        ("token gradient", "token_advantages .*gradient"),
        ("token shape", "token_advantages must return"),
        ("tokens in place", "token_advantages modified advantages_bt in place"),
        ("loss", "extra_loss must return"),
        ("nan loss", "extra_loss is nan"),
        ("traces", "traces must return"),
        ("metrics", "metrics must return"),
    ],
)
def test_a_mistake_is_one_line_with_the_hook_and_the_case(fault: str, told: str, training) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        try_explorer("my_module:Own", Own(fault), training)
    assert "Own" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_hook_of_a_sound_explorer_is_tried_and_no_random_number_is_used_up(training) -> None:
    class Random(Own):
        def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
            return advantages_pg + torch.rand(1).item() * 0

    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    hooks = ["rewards", "advantages", "token_advantages", "extra_loss", "traces", "metrics"]
    assert try_explorer("my_module:Own", Random(), training) == hooks
    assert torch.equal(torch.random.get_rng_state(), state)


ARGUMENTS: dict[str, dict[str, Any]] = {"pass_at_k": {"k": 2}, "pkpo": {"k": 2}, "reference_reset": {"every": 2}}
NEED_A_TRAINER = {"identity", "dynamic_sampling", "anchor", "mode_replay", "reference_reset"}


@pytest.mark.parametrize("name", EXPLORERS)
def test_ours_pass_and_most_of_them_can_be_tried(name: str, training) -> None:
    explorer = find_explorer(name)(**ARGUMENTS.get(name, {}))
    settings = copy.copy(training)
    settings.num_iterations = 2 if name == "kl_cov" else 1
    assert bool(try_explorer(name, explorer, settings)) == (name not in NEED_A_TRAINER)


class Asking(Explorer):
    def attach(self, trainer: Any) -> None:
        super().attach(trainer)
        self.device = trainer.model.device

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        return advantages_pg.to(self.device)


class Prepared(Explorer):
    def prepare(self, step: int) -> None:
        self.table = {"p0": 1.0}

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        return advantages_pg * self.table["p0"]


def test_what_needs_a_real_trainer_or_its_preparation_is_not_refused(training) -> None:
    assert try_explorer("my_module:Asking", Asking(), training) == []
    assert try_explorer("my_module:Prepared", Prepared(), training) == []


class Counting(Explorer):
    def __init__(self) -> None:
        self.calls = 0

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return advantages_pg


def test_the_explorer_that_trains_is_not_the_one_that_was_tried(training) -> None:
    (built,) = load_explorers({f"{__name__}:Counting": {}}, training)
    assert built.calls == 0
    mine = Counting()
    assert try_instance(mine, training) == ["advantages"]
    assert mine.calls == 0


def test_ones_own_is_tried_when_it_is_loaded_with_the_settings_of_a_run(training) -> None:
    with pytest.raises(ConfigError, match=r"Own'.*advantages modified"):
        load_explorers({f"{__name__}:Own": {"fault": "in place"}}, training)
    assert load_explorers({f"{__name__}:Own": {"fault": "in place"}})
