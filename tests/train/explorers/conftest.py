"""Rollouts and tokens written by hand."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from offleash.train.explorers.base import Rollouts, Tokens


@pytest.fixture(scope="session")
def rollouts() -> Callable[..., Rollouts]:
    """From rows such as "1100" (right, right, wrong, wrong; x where the verifier failed)."""

    def make(
        *groups: str, answers: Sequence[Sequence[str | None]] | None = None, logps: Any = None, **more: Any
    ) -> Rollouts:
        value = {"1": 1.0, "0": 0.0, "x": math.nan}
        rewards = torch.tensor([[value[letter] for letter in group] for group in groups])
        return Rollouts(
            step=5,
            problem_ids=tuple(f"p{i}" for i in range(len(groups))),
            rewards_pg=rewards,
            answers_pg=tuple(map(tuple, answers or [[f"a{i}" for i in range(len(g))] for g in groups])),
            logps_pg=None if logps is None else torch.tensor(logps),
            off_policy_pg=torch.zeros_like(rewards, dtype=torch.bool),
            **more,
        )

    return make


@pytest.fixture(scope="session")
def tokens() -> Callable[..., Tokens]:
    """One rank's micro-batch; a masked token has the log-probability NaN in no computation that counts."""

    def make(advantages: Any, logps: Any, *, old: Any = None, entropies: Any = None, mask: Any = None) -> Tokens:
        logps_bt = torch.tensor(logps, requires_grad=True)
        mask_bt = torch.ones(logps_bt.shape) if mask is None else torch.tensor(mask)
        return Tokens(
            step=5,
            advantages_bt=torch.tensor(advantages),
            logps_bt=logps_bt,
            old_logps_bt=logps_bt.detach() if old is None else torch.tensor(old),
            entropies_bt=torch.zeros(logps_bt.shape) if entropies is None else torch.tensor(entropies),
            mask_bt=mask_bt,
            off_policy_b=torch.zeros(len(logps_bt), dtype=torch.bool),
            token_mean=lambda loss_bt: (loss_bt * mask_bt).sum() / mask_bt.sum(),
            gather=lambda values: values,
        )

    return make
