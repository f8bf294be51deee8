"""Columns of padding are cut off in front of the model, and nothing that TRL makes of its outputs changes."""

from typing import Any

import pytest
import torch

from offleash.callbacks.policy import trl_scoring, trl_trimming
from offleash.callbacks.policy.trl_trimming import Trimmed, kept_columns, trimmed
from offleash.train import exploring
from offleash.train.explorers import find_explorer

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(columns given, columns that the model sees) of each forward pass."""
    seen: list[tuple[int, int]] = []
    call = Trimmed.__call__

    def watched(self: Trimmed, **inputs: Any) -> Any:
        first, last = kept_columns(inputs["attention_mask"], self.multiple)
        seen.append((inputs["attention_mask"].size(1), last - (first if self.is_relative else 0)))
        return call(self, **inputs)

    monkeypatch.setattr(Trimmed, "__call__", watched)
    return seen


def untrimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (trl_scoring, exploring):
        monkeypatch.setattr(module, "without_padding", lambda trainer, score, *args, **kwargs: score(*args, **kwargs))


def skewed(rows: int = 8, prompt: int = 24, new: int = 40, **others: Any) -> dict[str, Any]:
    """A micro-batch of TRL's with short rows: its longest prompt and completion are elsewhere."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 17, (rows, prompt + new), generator=rng)
    mask = torch.zeros(rows, prompt + new, dtype=torch.long)
    for row in range(rows):
        mask[row, prompt - 5 - row : prompt + 3 + 2 * row] = 1
    ids[mask == 0] = 0
    logps = -torch.rand(rows, new, generator=rng) * mask[:, prompt:]
    batch = {
        **{"prompt_ids": ids[:, :prompt], "prompt_mask": mask[:, :prompt]},
        **{"completion_ids": ids[:, prompt:], "completion_mask": mask[:, prompt:]},
        "advantages": torch.randn(rows, generator=rng),
        "num_items_in_batch": mask[:, prompt:].sum(),
        "old_per_token_logps": logps,
        "ref_per_token_logps": logps * 1.1,
        "sampling_per_token_logps": logps * 0.9,
        "tool_mask": (torch.rand(rows, new, generator=rng) > 0.2).long(),
    }
    return {**batch, **others}


def loss_and_gradient(trainer: Any, batch: dict[str, Any]) -> tuple[float, torch.Tensor]:
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 4
    loss = trainer._compute_loss(trainer.model, dict(batch))
    loss.backward()
    return loss.item(), torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])


def test_loss_and_gradient_of_every_loss_type_are_those_of_the_padded_batch(make_trainer, monkeypatch, widths):
    settings = {"entropy_coef": 0.01, "top_entropy_quantile": 0.5, "off_policy_mask_threshold": 5.0}
    trainer = make_trainer("run", [], **settings)
    trainer.model.train()

    def all_of_them() -> dict[str, Any]:
        found = {}
        for trainer.loss_type in LOSSES:
            found[trainer.loss_type] = loss_and_gradient(trainer, skewed())
        return found

    ours = all_of_them()
    assert widths == [(64, 12 + 17)] * len(LOSSES)
    untrimmed(monkeypatch)
    theirs = all_of_them()
    assert len(widths) == len(LOSSES)
    for name in LOSSES:
        assert ours[name][0] == pytest.approx(theirs[name][0], rel=1e-5), name
        assert (ours[name][1] - theirs[name][1]).norm() < 1e-5 * theirs[name][1].norm(), name
    for values in trainer._metrics["train"].values():
        half = len(values) // 2
        assert values[:half] == pytest.approx(values[half:], rel=1e-4, abs=1e-6)


@pytest.mark.long
def test_a_micro_batch_whose_completions_are_all_masked_has_a_loss_of_zero_and_a_gradient(make_trainer, widths):
    batch = skewed(completion_mask=torch.zeros(8, 40, dtype=torch.long))
    trainer = make_trainer("run", [], beta=0.0)
    trainer.model.train()
    loss, gradient = loss_and_gradient(trainer, batch)
    assert widths == [(64, 12)]
    assert loss == 0
    assert not gradient.any()


@pytest.mark.long
def test_a_run_trains_the_same_with_and_without_padding(make_trainer, monkeypatch, trajectory, widths):
    """Loss, old and reference scores, and explorers that read tokens, over several updates on the same rollouts."""
    explorers = {"clip_cov": {}, "tilt": {"tau": 0.3}}
    runs = []
    for name in ("ours", "theirs"):
        settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "steps_per_generation": 8}
        chosen = [find_explorer(kind)(**given) for kind, given in explorers.items()]
        trainer = make_trainer(name, chosen, **settings, num_iterations=2, max_steps=4, learning_rate=1e-4)
        if name == "theirs":
            untrimmed(monkeypatch)
        trainer.train()
        runs.append(trajectory(trainer))
    assert any(seen < given for given, seen in widths)
    for ours, theirs in zip(*runs, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


@pytest.mark.long
def test_every_chunk_of_a_scoring_pass_is_as_wide_as_its_own_rows_which_are_alike(make_trainer, monkeypatch, widths):
    trainer, batch, mixed = make_trainer("run", []), skewed(), torch.tensor([0, 7, 1, 6, 2, 5, 3, 4])
    batch = {name: values[mixed] if values.dim() else values for name, values in batch.items()}
    ours = trainer._logps(trainer.model, batch)
    trainer.args.per_device_train_batch_size = 4
    chunks = trainer._logps(trainer.model, batch)
    assert widths == [(64, 29), (64, 8 + 9), (64, 12 + 17)]
    untrimmed(monkeypatch)
    theirs = trainer._logps(trainer.model, batch)
    for found in (ours, chunks):
        torch.testing.assert_close(found, theirs, atol=1e-5, rtol=0)
        assert not found[batch["completion_mask"] == 0].any()


def test_positions_and_asked_for_multiples_decide_what_is_cut(make_trainer, widths):
    """A model with learned positions counts from the first column, longrope looks at the width of the batch."""
    trainer = make_trainer("run", [])
    for rotary, multiple, seen in (
        *(("default", None, 29), ("llama3", None, 29), ("default", 8, 40)),
        *(("longrope", None, None), (None, None, 41)),
    ):
        trainer.model.config.rope_parameters = {"full_attention": {"rope_type": rotary}} if rotary else None
        trainer.pad_to_multiple_of = multiple
        widths.clear()
        found = trimmed(trainer, trainer.model)
        trainer._logps(trainer.model, skewed())
        assert widths == ([] if seen is None else [(64, seen)]), rotary
        assert trimmed(trainer, found) is found


def test_without_a_token_nothing_is_cut():
    assert kept_columns(torch.zeros(2, 5)) == (0, 5)
    assert trl_trimming.kept_columns(torch.tensor([[0, 1, 0, 1, 0, 0]])) == (1, 4)
