"""Rollouts of an optimizer step are put into micro-batches by length where the step is the same, and nowhere else."""

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from trl import GRPOConfig

from offleash.callbacks.policy import trl_trimming
from offleash.callbacks.policy.trl_trimming import ADDS_UP_BY_ROW, by_length, in_order
from offleash.train.explorers import EXPLORERS, find_explorer
from offleash.train.explorers.base import Explorer
from offleash.train.trainer import ExploringTrainer

ROWS, MICRO, PROMPT, NEW = 16, 4, 12, 40
KINDS = [*sorted(ADDS_UP_BY_ROW), "bnpo"]
AVERAGED = ("kl", "entropy", "clip_ratio/", "cispo_clip_ratio", "vespo/")
"""What TRL averages over micro-batches."""


def rollouts(**others: Any) -> list[dict[str, Any]]:
    """Micro-batches of one rank, as TRL has them, with rows of very different lengths in each."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 17, (ROWS, PROMPT + NEW), generator=rng)
    mask = torch.zeros(ROWS, PROMPT + NEW, dtype=torch.long)
    for row, length in enumerate(torch.randint(1, NEW, (ROWS,), generator=rng).tolist()):
        mask[row, PROMPT - 2 - row % 7 : PROMPT + (NEW if row == 5 else length // 2 if row % 3 else length)] = 1
    ids[mask == 0] = 0
    logps = -4 * torch.rand(ROWS, NEW, generator=rng) * mask[:, PROMPT:]
    batch = {
        **{"prompt_ids": ids[:, :PROMPT], "prompt_mask": mask[:, :PROMPT]},
        **{"completion_ids": ids[:, PROMPT:], "completion_mask": mask[:, PROMPT:]},
        "advantages": torch.randn(ROWS, generator=rng),
        "num_items_in_batch": mask[:, PROMPT:].sum(),
        "old_per_token_logps": logps,
        "ref_per_token_logps": logps * 1.1,
        "sampling_per_token_logps": logps * 0.9,
        "importance_sampling_ratio": torch.rand(ROWS, NEW, generator=rng) + 0.5,
        "tool_mask": (torch.rand(ROWS, NEW, generator=rng) > 0.2).long(),
        "off_policy": torch.arange(ROWS) % 5 == 0,
    }
    return trl_trimming.split_tensor_dict({**batch, **others}, ROWS // MICRO)


def gradient(trainer: Any, step: list[dict[str, Any]]) -> torch.Tensor:
    """What an optimizer step of these micro-batches learns from."""
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = len(step)
    for batch in step:
        trainer._compute_loss(trainer.model, dict(batch)).backward()
    return torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])


def difference(trainer: Any, step: list[dict[str, Any]]) -> float:
    """Of the gradients with and without regrouping, relative; regrouped here whether or not a run would be."""
    dealt = sorted(by_length(step), key=trl_trimming._width, reverse=True)
    assert sum(map(trl_trimming._width, dealt)) < 0.8 * sum(map(trl_trimming._width, step))
    drawn = gradient(trainer, step)
    return float((gradient(trainer, dealt) - drawn).norm() / drawn.norm())


@pytest.fixture
def trainer(make_trainer) -> Any:
    """Of steps of four micro-batches of four rollouts."""
    made = make_trainer("run", [], per_device_train_batch_size=MICRO, gradient_accumulation_steps=ROWS // MICRO)
    made.model.train()
    return made


def test_every_loss_type_of_trl_is_in_the_table_or_known_not_to_add_up():
    told = GRPOConfig.__dataclass_fields__["loss_type"].metadata["help"].split(". ")[1]
    assert set(re.findall(r"'(\w+)'", told)) == set(KINDS)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_step_learns_the_same_from_rows_by_length_with_every_loss_type_but_one(level, trainer):
    """All that a row's loss reads: KL, clipping, masks of off-policy rows and of tools, vLLM's ratios."""
    trainer.importance_sampling_level = level
    trainer.off_policy_mask_threshold, trainer.use_vllm, trainer.vllm_importance_sampling_correction = 0.5, True, True
    found = {}
    for trainer.loss_type in KINDS:
        found[trainer.loss_type] = difference(trainer, rollouts())
        is_dealt = in_order(trainer, batches := rollouts()) is not batches
        assert is_dealt == (trainer.loss_type != "bnpo")
    assert found.pop("bnpo") > 0.05
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize(
    "setting", [{"_entropy_bonus_enabled": True, "entropy_coef": 0.1}, {"top_entropy_quantile": 0.3}]
)
def test_what_pools_a_micro_batch_keeps_its_rows_and_would_learn_something_else(setting, trainer):
    for name, value in setting.items():
        setattr(trainer, name, value)
    assert difference(trainer, rollouts()) > 0.01
    assert in_order(trainer, batches := rollouts()) is batches


def test_with_a_load_balancing_loss_or_embeddings_scaled_by_the_width_rows_stay(trainer):
    assert in_order(trainer, batches := rollouts()) is not batches
    trainer.aux_loss_enabled = True
    assert in_order(trainer, batches) is batches
    trainer.aux_loss_enabled = False
    trainer.model.config.rope_parameters = {"rope_type": "dynamic"}
    assert in_order(trainer, batches) is batches


def rows_of(batches: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Each row with all that is its own."""
    keys = [key for key, value in batches[0].items() if isinstance(value, list) or value.dim()]
    return [
        tuple(value if isinstance(value, int) else tuple(value.flatten().tolist()) for value in row)
        for batch in batches
        for row in zip(*(batch[key] for key in keys), strict=True)
    ]


def test_rows_move_whole_and_stay_in_their_step(trainer):
    batches = rollouts(number=list(range(ROWS)))
    for window in (2, 4, 8):  # two steps of these rollouts; one; half of one
        trainer.args.gradient_accumulation_steps = window
        found = in_order(trainer, batches)
        assert [len(batch["prompt_ids"]) for batch in found] == [MICRO] * 4
        assert all(batch["num_items_in_batch"] == batches[0]["num_items_in_batch"] for batch in found)
        assert all(batch.keys() == batches[0].keys() for batch in found)
        for start in range(0, 4, window):
            step = found[start : start + window]
            assert sorted(rows_of(step)) == sorted(rows_of(batches[start : start + window]))
            widths = list(map(trl_trimming._width, step))
            assert widths == sorted(widths, reverse=True)
            lengths = [row["prompt_mask"].sum(1) + row["completion_mask"].sum(1) for row in step]
            assert all(wide.min() >= narrow.max() for wide, narrow in pairwise(lengths))


def test_rows_of_one_length_keep_their_order_and_the_order_is_the_same_each_time():
    ones = torch.ones(ROWS, PROMPT, dtype=torch.long)
    mask = torch.tensor([[1, 0], [1, 1]]).repeat(ROWS // 2, 1)
    batches = rollouts(prompt_mask=ones, completion_mask=mask, number=list(range(ROWS)))
    for _ in range(2):
        numbers = [number for batch in by_length(batches) for number in batch["number"]]
        assert numbers == [*range(1, ROWS, 2), *range(0, ROWS, 2)]


def test_where_nothing_is_known_or_to_be_gained_the_micro_batches_are_those_drawn(trainer):
    images = rollouts(num_images=[1] * ROWS)
    assert by_length(images) is images
    uneven = [*rollouts()[:3], {key: value[:2] if value.dim() else value for key, value in rollouts()[3].items()}]
    assert by_length(uneven) is uneven
    alone = rollouts()[:1]
    assert by_length(alone) is alone
    single = [{key: value[:1] if value.dim() else value for key, value in batch.items()} for batch in rollouts()]
    assert by_length(single) is single
    for batches in (images, single):
        assert all(a is b for a, b in zip(in_order(trainer, batches), batches, strict=True))
    batches = rollouts()
    trainer.args.gradient_accumulation_steps = 3  # a step would have rows of two batches of rollouts
    assert in_order(trainer, batches) is batches
    trainer.args.gradient_accumulation_steps, trainer.args.auto_find_batch_size = 4, True
    assert in_order(trainer, batches) is batches


def test_where_weights_are_sharded_micro_batches_of_rows_that_stay_are_ordered_too(trainer, monkeypatch):
    monkeypatch.setattr(trl_trimming, "weight_shards", lambda trainer: "ZeRO-3")
    trainer.loss_type = "bnpo"
    batches = rollouts()
    found = in_order(trainer, batches)
    assert {id(batch) for batch in found} == {id(batch) for batch in batches}
    widths = list(map(trl_trimming._width, found))
    assert widths == sorted(widths, reverse=True) != list(map(trl_trimming._width, batches))


def learned(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """A trajectory without what TRL averages over micro-batches."""
    names = (*AVERAGED, "explorer/token_advantage", "explorer/guide")
    return [{key: value for key, value in row.items() if not key.startswith(names)} for row in rows]


STEPS = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "learning_rate": 1e-4}


@pytest.fixture
def dealt(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each optimizer step of rollouts, whether its rows were put in order."""
    seen: list[bool] = []

    def watched(step: list[dict[str, Any]]) -> Any:
        found = by_length(step)
        seen.append(found is not step)
        return found

    monkeypatch.setattr(trl_trimming, "by_length", watched)
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        {"steps_per_generation": 8, "num_iterations": 2, "max_steps": 4},
        pytest.param({"steps_per_generation": 2, "num_iterations": 2, "max_steps": 2}, marks=pytest.mark.long),
        pytest.param({"loss_type": "grpo", "steps_per_generation": 8, "max_steps": 3}, marks=pytest.mark.long),
    ],
)
def test_a_run_takes_the_steps_of_plain_trl(settings, make_trainer, trajectory, dealt):
    runs = []
    for name, explorers in (("ours", []), ("plain", None)):
        trainer = make_trainer(name, explorers, **STEPS, **settings)
        trainer.train()
        runs.append(trajectory(trainer))
    assert any(dealt)
    assert len(runs[0]) == settings["max_steps"]
    for ours, theirs in zip(*map(learned, runs), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert set(runs[0][0]) - set(learned(runs[0])[0]) > {"kl", "entropy", "clip_ratio/high_mean"}


@pytest.mark.long
@pytest.mark.parametrize(("rollouts_of", "at", "steps"), [(4, 2, 2), (8, 1, 4)])
def test_a_resumed_run_is_in_the_same_order(rollouts_of, at, steps, make_trainer, trajectory, dealt, tmp_path):
    """At the start of a rollout as without a break; in the middle of one, where TRL draws anew, as each other time."""
    settings = {**STEPS, "steps_per_generation": rollouts_of, "max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    whole = make_trainer("whole", [], **settings)
    whole.train()
    runs = [trajectory(whole)]
    for name in ("first", "second"):
        resumed = make_trainer(name, [], **settings)
        dealt.clear()
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
        assert dealt == [True] * steps
        runs.append(trajectory(resumed))
    assert runs[1] == runs[2]
    assert (runs[1] == runs[0]) == (rollouts_of == 4)


class Beside(Explorer):
    """A loss on what is not in the micro-batch, and one by token."""

    rows_apart = True

    def extra_loss(self, tokens: Any, model: Any) -> torch.Tensor:
        own = sum((weight**2).sum() for weight in model.parameters()) / self.trainer.current_gradient_accumulation_steps
        return 1e-4 * own + tokens.token_mean(0.1 * tokens.entropies_bt)


class Pooling(Beside):
    rows_apart = False


@pytest.mark.long
def test_explorers_that_take_rollouts_apart_learn_the_same_and_others_keep_micro_batches(
    make_trainer, trajectory, dealt, monkeypatch
):
    def run(name: str, last: Explorer) -> Any:
        chosen = [find_explorer("sage")(threshold=0.1), find_explorer("entropy_advantage")(), last]
        trainer = make_trainer(name, chosen, **STEPS, steps_per_generation=8, num_iterations=2, max_steps=4)
        trainer.train()
        return learned(trajectory(trainer))

    ours = run("ours", Beside())
    assert dealt == [True, True]
    for row, other in zip(ours, run("pooling", Pooling()), strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-5)
    assert len(dealt) == 2


APART = {"entropy_advantage": {}, "sage": {"threshold": 0.1}, "seeding": {}, "tilt": {}}
POOLING = {"clip_cov": {"ratio": 0.2, "low": 0.1}, "kl_cov": {"ratio": 0.2}, "tilt": {"credit": "to_go"}}


@pytest.mark.parametrize(("name", "arguments"), [*APART.items(), *POOLING.items()])
def test_explorers_say_whether_their_loss_takes_rollouts_apart(name, arguments, trainer):
    explorer = find_explorer(name)(**arguments)
    explorer.trainer, trainer.explorers = trainer, [explorer]
    changed = difference(trainer, rollouts())
    assert trainer._pools_micro_batches() == (changed > 1e-5) == (not explorer.rows_apart)


def test_every_explorer_that_acts_in_the_loss_is_looked_at_here():
    """Rehearsal, anchoring and mode replay do not read the micro-batch."""
    hooks = ("token_advantages", "extra_loss")
    kinds = {name: find_explorer(name) for name in EXPLORERS}
    in_loss = {name for name, kind in kinds.items() if any(getattr(kind, h) is not getattr(Explorer, h) for h in hooks)}
    assert in_loss == {*APART, *POOLING, "rehearsal", "anchor", "mode_replay"}


class Wary(ExploringTrainer):
    """A trainer of one's own, with a loss that may be anything."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        return super()._compute_loss(model, inputs)


def test_a_trainer_with_a_loss_of_its_own_keeps_its_micro_batches(trainer):
    assert not trainer._pools_micro_batches()
    trainer.__class__ = Wary
    assert trainer._pools_micro_batches()
