"""The frozen base inside a trainer: the model at step 0, available at any later step.

It is the KL reference as long as that does not change. With PEFT it is the policy without its adapter; with `beta = 0`
or a reference that moves it is a separate copy, loaded from where the policy came from.

Whatever it is, nothing may write to it: at every measurement a hash of its weights is compared with that of the first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import is_peft_model

from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import (
    draw_as_one,
    entropy_head,
    generating_with,
    load_reference,
    model_id,
    reshard,
    take_over_sync,
    token_logits,
)
from offleash.callbacks.policy.weight_hash import hash_weights, moved_weights
from offleash.eval.console import say
from offleash.eval.errors import ConfigError, EngineError

ZEROS = (
    "under FSDP2 with fsdp_cpu_ram_efficient_loading the frozen base is zero on every process but the first: set "
    "fsdp_cpu_ram_efficient_loading: false in the accelerate config"
)
SAME = 0.05
"""Nats by which two forward passes of one model may differ on average, in bfloat16 too."""


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
        self._hashes: dict[int, dict[str, int]] = {}
        """Of each model that serves as the base, by its identity: of its weights when they were first seen."""
        take_over_sync(trainer)
        draw_as_one(trainer)

    def is_reference(self) -> bool:
        """Whether TRL's KL reference is the base, so that the reference's log-probabilities are the base's."""
        return self.trainer.args.beta != 0 and not self._reference_moves()

    @contextmanager
    def scored(self) -> Iterator[Any]:
        """The base as a model for `trl_seam.token_logps`, with entropies."""
        trainer = self.trainer
        if self._is_adapter():
            with self._policy().disable_adapter():
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
        with self._policy().disable_adapter():
            if not trainer.use_vllm:
                yield
                return
            with generating_with(trainer, trainer.model):  # copied to the engine without the adapter
                yield

    def check_is_policy(self) -> None:
        """Raise ConfigError if a policy with an adapter does not start as the base. Call it at step 0, on every rank.

        An adapter that was trained before, or one that takes a part of the weights over from the base, as PiSSA does.
        """
        if not self._is_adapter():
            return
        if any(getattr(config, "bias", "none") != "none" for config in self._policy().peft_config.values()):
            raise ConfigError(
                "this adapter trains biases of the base itself, which would no longer be the base: set bias to none"
            )
        logits = partial(token_logits, self.trainer, self.trainer.model)
        ids = torch.arange(min(32, self.trainer.model.config.get_text_config().vocab_size))[None]
        own = logits(ids).log_softmax(-1)
        with self._policy().disable_adapter():
            difference = float((logits(ids).log_softmax(-1) - own).abs().mean())
        if not difference <= SAME:
            raise ConfigError(
                f"the policy does not start as the base: its adapter changes log-probabilities by {difference:.3g} on "
                "average. Merge a trained adapter into the model first (merge_and_unload) and start from the merged "
                "folder; leave init_lora_weights at its default"
            )

    def check_unchanged(self, step: int) -> None:
        """Raise EngineError, on every rank, if the base's weights are not those of the first call. Collective."""
        found = self._weights()
        if found is None:
            return
        holder, weights = found
        now = hash_weights(weights)
        before = self._hashes.setdefault(holder, now)
        Ranks(self.trainer.accelerator).on_all(lambda: _check_same(before, now, step), waits=False)

    def _weights(self) -> tuple[int, list[tuple[str, Any]]] | None:
        """The base's weights in memory, and whose they are; None if no model serves as the base so far."""
        if self._is_adapter():
            policy = self._policy()
            reshard(policy)  # what this process has must be the same part each time
            return id(policy), [(name, each) for name, each in policy.named_parameters() if not each.requires_grad]
        held = self._copy if self.trainer.ref_model is None or self._reference_moves() else self.trainer.ref_model
        if held is None:
            return None
        reshard(held)
        return id(held), list(held.named_parameters())

    def _policy(self) -> Any:
        return self.trainer.accelerator.unwrap_model(self.trainer.model)

    def _is_adapter(self) -> bool:
        return bool(is_peft_model(self._policy()))

    def _module(self) -> Any:
        check_loaded_everywhere(self.trainer)
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


def check_loaded_everywhere(trainer: PolicyTrainer) -> None:
    """Raise ConfigError if a frozen model is zero on all processes but the first of each machine."""
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None) if trainer.is_fsdp_enabled else None
    if plugin is not None and plugin.fsdp_version == 2 and plugin.cpu_ram_efficient_loading:
        raise ConfigError(ZEROS)


def _check_same(before: dict[str, int], now: dict[str, int], step: int) -> None:
    if moved := moved_weights(before, now):
        raise EngineError(
            f"the frozen base has changed by step {step}: {moved[0]} and {len(moved) - 1} more of its {len(before)} "
            "weights are not what they were, so every number measured against it would be of another model. Something "
            "writes to frozen weights: look for a callback or a weight sync that merges adapters in place"
        )
