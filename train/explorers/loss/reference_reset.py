"""Reference reset: the current policy becomes the KL reference, and the optimizer state is reset.

Liu et al., ProRL, arXiv 2505.24864, section 2.3.1: a hard reset of reference and optimizer state when progress stalls.
The paper looks at validation scores; here it is the training reward, because training must not use the probe problems.
With `alpha` below 1 and `reset_optimizer: false` it is TRL's `sync_ref_model`, but saved in checkpoints.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from accelerate.utils import is_peft_model
from safetensors.torch import load_file, save_file
from trl import GRPOConfig

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.train.explorers.base import Explorer, ExplorerTrainer, Rollouts
from offleash.train.explorers.checks import check_fraction, updates_per_rollout

STATE, WEIGHTS = "reference_reset.json", "reference.safetensors"
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


@dataclass
class Stall:
    """Whether a reward has stopped rising: the mean of the last `window` values has had no new best for `patience`."""

    patience: int
    window: int
    values: list[float] = field(default_factory=list)
    best: float | None = None
    since: int = 0

    def add(self, value: float) -> bool:
        self.values = [*self.values, value][-self.window :]
        if len(self.values) < self.window:
            return False
        mean = fmean(self.values)
        if self.best is None or mean > self.best:
            self.best, self.since = mean, 0
        else:
            self.since += 1
        return self.since >= self.patience


class ReferenceReset(Explorer):
    """Resets at a fixed interval, or when the reward stalls.

    Args:
        every: steps between resets.
        patience: instead of `every`, reset after this many generation batches without a new best training reward.
        window: generation batches over which the training reward is averaged.
        alpha: weight of the policy in the new reference; the old reference has the rest.
        reset_optimizer: whether to reset the optimizer as well; the learning rate schedule continues either way.
    """

    moves_reference: ClassVar[bool] = True

    def __init__(
        self,
        every: int | None = None,
        patience: int | None = None,
        window: int = 10,
        alpha: float = 1.0,
        reset_optimizer: bool = True,
    ) -> None:
        given = [number for number in (every, patience) if number is not None]
        if len(given) != 1 or min(*given, window) < 1:
            raise _error("needs either every or patience, at least 1 (window as well)")
        check_fraction("reference_reset", alpha=alpha)
        self.every, self.alpha, self.reset_optimizer = every, alpha, reset_optimizer
        self.stall = None if patience is None else Stall(patience, window)
        self.resets = 0
        self._rewards: list[float] = []

    def check(self, training: GRPOConfig) -> None:
        updates, every = updates_per_rollout(training), self.every
        if training.beta == 0:
            raise _error("does nothing without a KL reference: set beta above 0")
        if self.reset_optimizer and training.optim not in OPTIMIZERS:
            raise _error(f"can reset only torch's AdamW: set optim: {OPTIMIZERS[0]}, or reset_optimizer: false")
        if every is not None and every % updates:
            raise _error(f"would reset within a rollout's {updates} updates: make every a multiple of {updates}")
        if every is not None and 0 < training.max_steps < every:
            raise _error(f"would never reset: every is {every}, max_steps {training.max_steps}")

    def attach(self, trainer: ExplorerTrainer) -> None:
        super().attach(trainer)
        if is_peft_model(trainer.accelerator.unwrap_model(trainer.model)):
            raise _error("cannot move the reference of a PEFT run, the model without its adapter: set use_peft: false")
        if trainer.is_fsdp_enabled:
            raise _error("cannot save a reference that FSDP has sharded: use DeepSpeed ZeRO or plain data parallelism")

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        """Unchanged; the true training reward is read here."""
        if self.stall is not None:
            self._rewards.append(rollouts.rewards_pg.nanmean().item())
        return advantages_pg

    def after_step(self, step: int) -> None:
        if step % updates_per_rollout(self.trainer.args) == 0 and self._is_due(step):
            self._reset(step)

    def _is_due(self, step: int) -> bool:
        if self.stall is None:
            assert self.every is not None
            return step % self.every == 0
        known = [reward for reward in self._rewards if not math.isnan(reward)]
        self._rewards = []
        return bool(known) and self.stall.add(fmean(known))

    def _reset(self, step: int) -> None:
        trainer = self.trainer
        policy = trainer.accelerator.unwrap_model(trainer.model)
        pairs = zip(self._reference().parameters(), policy.parameters(), strict=True)
        for kept, trained in pairs:
            with _whole(kept, trained):
                kept.data.mul_(1 - self.alpha).add_(trained.data, alpha=self.alpha)
        if self.reset_optimizer:
            reset_optimizer_state(trainer.optimizer)
        self.resets += 1
        if self.stall is not None:
            self.stall = Stall(self.stall.patience, self.stall.window)
        if trainer.accelerator.is_local_main_process:
            say(f"offleash: step {step}: KL reference set to the current policy (reset {self.resets})")

    def metrics(self) -> dict[str, float]:
        stalled = {} if self.stall is None else {"stalled": float(self.stall.since)}
        return {"resets": float(self.resets), **stalled}

    def save(self, folder: Path) -> None:
        is_main = self.trainer.accelerator.is_main_process
        if self.resets:
            weights = {}
            for name, parameter in self._reference().named_parameters():
                with _whole(parameter):
                    if is_main:
                        weights[name] = parameter.detach().cpu().contiguous().clone()
            if is_main:
                save_file(weights, folder / WEIGHTS)
        if is_main:
            state = {"resets": self.resets, "stall": None if self.stall is None else asdict(self.stall)}
            write_atomic(folder / STATE, json.dumps(state).encode())

    def load(self, folder: Path) -> None:
        state = json.loads((folder / STATE).read_text())
        self.resets = state["resets"]
        if self.stall is not None and state["stall"] is not None:
            self.stall = Stall(**{**state["stall"], "patience": self.stall.patience, "window": self.stall.window})
        if self.resets:
            saved = load_file(folder / WEIGHTS)
            for name, parameter in self._reference().named_parameters():
                with _whole(parameter):
                    parameter.data.copy_(saved[name])

    def _reference(self) -> torch.nn.Module:
        return self.trainer.accelerator.unwrap_model(self.trainer.ref_model)


@contextmanager
def _whole(*parameters: torch.nn.Parameter) -> Iterator[None]:
    """Gathered while the block runs, if ZeRO-3 has sharded them; a few at a time, as a whole model may not fit.

    What the main process's copies are afterwards is kept.
    """
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(parameters), modifier_rank=0):
        yield


def _error(problem: str) -> ConfigError:
    return ConfigError(f"explorer reference_reset {problem}")


def reset_optimizer_state(optimizer: Any) -> None:
    """Reset to the state before the first step. Accelerate and DeepSpeed (0.19) wrap the optimizer that holds it."""
    while hasattr(optimizer, "optimizer"):
        if getattr(optimizer, "swap_optimizer", False):
            raise _error("cannot reset an optimizer on NVMe: offload it to the CPU")
        optimizer = optimizer.optimizer
    for holder in (*optimizer.state.values(), *optimizer.param_groups):
        if "step" in holder and not torch.is_tensor(holder["step"]):
            holder["step"] = 0
    for state in optimizer.state.values():
        for value in state.values():
            if torch.is_tensor(value):
                value.zero_()
