"""The frozen base inside a trainer: the model at step 0, available at any later step.

It is the KL reference as long as that does not change. With PEFT it is the policy without its adapter; with `beta = 0`
or a reference that moves it is a separate copy, loaded from where the policy came from.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import is_peft_model

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import entropy_head, generating_with, load_reference, model_id
from offleash.eval.console import say
from offleash.eval.errors import MonitorError


def frozen_base(trainer: PolicyTrainer) -> "FrozenBase":
    """The trainer's FrozenBase: everything that needs the base shares one copy of it."""
    base: FrozenBase | None = getattr(trainer, "offleash_base", None)
    if base is None:
        base = trainer.offleash_base = FrozenBase(trainer)  # type: ignore[attr-defined]
    return base


class FrozenBase:
    """Gives access to the base, for scoring and for sampling."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer
        self._copy: Any = None

    def is_reference(self) -> bool:
        """Whether TRL's KL reference is the base, so that the reference's log-probabilities are the base's."""
        return self.trainer.args.beta != 0 and not self._reference_moves()

    @contextmanager
    def scored(self) -> Iterator[Any]:
        """The base as a model for `trl_seam.token_logps`, with entropies."""
        trainer = self.trainer
        if self._is_adapter():
            with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
                yield trainer.model
            return
        module = self._module()
        # Only inside the block: entropies cost time at every call.
        with entropy_head(trainer, trainer.accelerator.unwrap_model(module)):
            yield module

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Inside the block the trainer generates from the base, after it from the policy again."""
        trainer = self.trainer
        if not self._is_adapter():
            with generating_with(trainer, self._module()):
                yield
            return
        if trainer.use_vllm:
            raise MonitorError(
                "the base pool is missing and cannot be drawn in the middle of a PEFT run with vLLM: "
                "start the run from step 0, or put the base pool of an earlier run into base_pools"
            )
        with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
            yield

    def _is_adapter(self) -> bool:
        return bool(is_peft_model(self.trainer.accelerator.unwrap_model(self.trainer.model)))

    def _module(self) -> Any:
        if self.trainer.ref_model is not None and not self._reference_moves():
            return self.trainer.ref_model
        if self._copy is None:
            self._copy = self._load()
        return self._copy

    def _reference_moves(self) -> bool:
        explorers = getattr(self.trainer, "explorers", ())
        return self.trainer.args.sync_ref_model or any(explorer.moves_reference for explorer in explorers)

    def _load(self) -> Any:
        source = model_id(self.trainer.model)
        if self.trainer.accelerator.is_local_main_process:
            say(
                f"offleash: loading a frozen copy of {source} to measure the KL to the base, because the run has no "
                "fixed reference (beta = 0, or a reference that is reset). It takes the memory of one more model; "
                "kl_to_base=False avoids it."
            )
        return load_reference(self.trainer, source)
