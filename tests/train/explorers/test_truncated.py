"""Truncated rollouts whose tokens TRL masks: explorers still see how likely they were."""

from typing import Any

import pytest
import torch

from offleash.train.explorers.advantages.ucpo import rarity_weights
from offleash.train.explorers.advantages.unlikeliness import likeliness_ranks
from offleash.train.explorers.base import Explorer

CUT = {"max_completion_length": 8, "max_steps": 1, "per_device_train_batch_size": 16}
SETTINGS = {"forward": {}, "known": {"steps_per_generation": 2, "per_device_train_batch_size": 8}}
"""TRL has no log-probabilities of the rollouts with one update for them, and those of the others with two."""


class Watch(Explorer):
    needs_logps = needs_base_logps = needs_completions = True

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        self.seen.append(rollouts)
        return advantages_pg


@pytest.mark.parametrize("setting", ["forward", pytest.param("known", marks=pytest.mark.long)])
def test_a_truncated_rollout_is_as_likely_masked_as_unmasked(setting: str, make_trainer) -> None:
    seen = []
    for masked in (False, True):
        watch = Watch()
        settings = {**CUT, **SETTINGS[setting], "mask_truncated_completions": masked}
        make_trainer(f"{masked}", [watch], **settings).train()
        seen.append(watch.seen[0])
    open_, masked_ = seen
    cut_pg = torch.tensor([[not ids for ids in group] for group in masked_.completion_ids_pg])
    assert 0 < cut_pg.sum() < cut_pg.numel()
    for name in ("logps_pg", "sequence_logps_pg"):
        assert torch.allclose(getattr(masked_, name), getattr(open_, name), atol=1e-4), name
    assert (masked_.logps_pg < -1e-3).all()
    assert torch.equal(masked_.base_logps_pg.isnan(), cut_pg)


def test_a_rollout_of_unknown_likelihood_is_neither_the_likeliest_nor_the_rarest() -> None:
    logps_pg = torch.tensor([[-2.0, torch.nan, -1.0, -3.0]])
    assert likeliness_ranks(logps_pg).tolist() == [[1, 0, 2, 0]]
    weights_pg = rarity_weights(logps_pg, torch.ones(1, 4, dtype=torch.bool), 0.5)
    assert weights_pg[0, 1] == 1
    assert weights_pg[0, [0, 2, 3]].sum() == pytest.approx(3)
