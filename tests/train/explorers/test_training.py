"""Explorers in a real trainer: every hook does there what it says, and stock TRL is left alone where it should be."""

from typing import Any

import pytest
import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers import EXPLORERS, find_explorer, load_explorers
from offleash.train.explorers.base import Explorer, normalized


@pytest.fixture
def trained(make_trainer, trajectory):
    """The trajectory of a run: built and trained at once, as the seed is set when a trainer is built."""

    def run(name: str, explorers: list[Explorer] | None, **settings: Any) -> Any:
        trainer = make_trainer(name, explorers, **settings)
        trainer.train()
        return trajectory(trainer)

    return run


def test_without_explorers_and_with_the_identity_the_trajectory_is_stock_trls(trained) -> None:
    stock, none, identity = trained("stock", None), trained("none", []), trained("identity", [Explorer()])
    assert none == stock
    assert [{k: v for k, v in row.items() if not k.startswith("explorer/")} for row in identity] == stock
    assert all(row["explorer/advantage_change_abs"] == 0 for row in identity)


@pytest.mark.long
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_our_normalisation_is_trls(scale: str, make_trainer) -> None:
    """Fails if TRL changes how it turns rewards into advantages."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Watch(Explorer):
        def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
            seen.append((rollouts.rewards_pg, advantages_pg))
            return advantages_pg

    make_trainer("run", [Watch()], scale_rewards=scale, max_steps=2).train()
    for rewards_pg, advantages_pg in seen:
        assert torch.allclose(normalized(rewards_pg, scale), advantages_pg, atol=1e-6)
        assert rewards_pg.std() > 0


class Shift(Explorer):
    """Ten times the advantage, by whole rollouts or by tokens."""

    def __init__(self, by_token: bool) -> None:
        self.by_token = by_token

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        return advantages_pg if self.by_token else 10 * advantages_pg

    def token_advantages(self, tokens: Any) -> torch.Tensor:
        return 10 * tokens.advantages_bt if self.by_token else tokens.advantages_bt


def test_advantages_given_per_rollout_and_per_token_give_the_same_steps(trained) -> None:
    by_rollout, by_token = (trained(str(way), [Shift(way)], max_steps=2) for way in (False, True))
    norms = [row["grad_norm"] for row in by_rollout]
    assert norms == pytest.approx([row["grad_norm"] for row in by_token])
    assert norms[0] != pytest.approx(trained("plain", [], max_steps=2)[0]["grad_norm"])


class Entropy(Explorer):
    """TRL's own entropy bonus, written as an extra loss."""

    def extra_loss(self, tokens: Any, model: Any) -> torch.Tensor:
        return -0.05 * (tokens.entropies_bt * tokens.mask_bt).sum() / tokens.mask_bt.sum()


def test_an_extra_loss_enters_the_gradient_as_trls_own_entropy_bonus_does(trained) -> None:
    ours, theirs = trained("ours", [Entropy()], max_steps=2), trained("theirs", None, max_steps=2, entropy_coef=0.05)
    pairs = zip(ours, theirs, strict=True)
    assert all(a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5) for a, b in pairs)


class Constant(Explorer):
    """A loss of `size` in every optimizer step, whatever the number of micro-batches."""

    def __init__(self, size: float) -> None:
        self.size = size

    def extra_loss(self, tokens: Any, model: Any) -> torch.Tensor:
        return torch.tensor(self.size / self.trainer.current_gradient_accumulation_steps)


@pytest.mark.long
def test_extra_losses_of_all_explorers_are_logged_as_they_enter_a_step(trained) -> None:
    accumulated = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "max_steps": 1}
    (row,) = trained("run", [Constant(0.5), Constant(0.25)], **accumulated)
    assert row["explorer/extra_loss"] == pytest.approx(0.75)


class Policy(Explorer):
    """The policy loss once more, through token_mean."""

    def extra_loss(self, tokens: Any, model: Any) -> torch.Tensor:
        ratio = torch.exp(tokens.logps_bt - tokens.old_logps_bt)
        return tokens.token_mean(-ratio * tokens.advantages_bt)


@pytest.mark.long
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
def test_token_mean_averages_as_trl_does_for_every_loss_type(loss_type: str, trained) -> None:
    """Without KL the policy loss is all there is: twice the loss, twice the gradient. Accumulated over two batches."""
    settings = {"beta": 0.0, "max_steps": 1, "loss_type": loss_type, "max_grad_norm": 1e9}
    settings |= {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    plain, twice = trained("plain", [], **settings), trained("twice", [Policy()], **settings)
    assert twice[0]["grad_norm"] == pytest.approx(2 * plain[0]["grad_norm"], rel=1e-4)


ARGUMENTS: dict[str, dict[str, Any]] = {"pass_at_k": {"k": 2}, "pkpo": {"k": 2}, "reference_reset": {"every": 2}}
WITHOUT = ("anchor", "rehearsal", "mode_replay", "seeding", "kl_cov", "clip_cov", "sage")  # they leave advantages alone
ADVANTAGE_VARIANTS = [name for name in EXPLORERS if name not in WITHOUT and not find_explorer(name).splits_solved]


@pytest.mark.long
@pytest.mark.parametrize("name", ADVANTAGE_VARIANTS)
def test_no_bonus_tells_the_rollouts_of_an_all_right_group_apart(
    name: str, rollouts, make_trainer, stand_in_trainer
) -> None:
    from offleash.train.trainer import ExploringTrainer

    explorer = find_explorer(name)(**ARGUMENTS.get(name, {}))
    explorer.trainer = stand_in_trainer({"seed": 0}, max_completion_length=8)
    batch = rollouts(
        *("1111", "11x1"),
        answers=[["7", "7", "8", "9"]] * 2,
        logps=[[-1.0, -2.0, -0.1, -5.0]] * 2,
        completion_ids_pg=(((1,), (1, 2), (1, 2, 3), (4,)),) * 2,
    )
    trainer = ExploringTrainer.__new__(ExploringTrainer)
    trainer.explorers, trainer.scale_rewards, trainer._metrics = [explorer], "group", _Metrics()
    shaped = trainer._advantages(batch, torch.zeros(2, 4))
    assert shaped[0].std() == 0
    assert shaped[1, [0, 1, 3]].std() == 0
    assert shaped[1, 2] == 0  # the verifier failed: no signal


class _Metrics(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        self[key] = _Metrics() if key == "train" else []
        return self[key]


def test_an_explorer_of_ones_own_is_named_by_its_path_and_its_arguments_are_checked() -> None:
    (mine,) = load_explorers({f"{__name__}:Shift": {"by_token": True}})
    assert isinstance(mine, Shift)
    with pytest.raises(ConfigError, match="its arguments are: by_token"):
        load_explorers({f"{__name__}:Shift": {"size": 3}})
    with pytest.raises(ConfigError, match="did you mean pass_at_k"):
        load_explorers({"pass_at": {}})
