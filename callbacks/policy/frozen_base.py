"""The frozen base inside a trainer: the model at step 0, found again at any later step.

It is the KL reference only while that one stands still: with PEFT it is the policy without its adapter, with `beta = 0`
or a reference that moves it is a copy of its own, loaded from where the policy came from. Read against trl 1.16.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import is_peft_model
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import add_fused_lm_head, create_model_from_path, disable_dropout_in_model, get_config_model_id

from offleash.eval.errors import MonitorError


def frozen_base(trainer: Any) -> "FrozenBase":
    """The one of this trainer: whoever needs the base shares a copy of it."""
    if not hasattr(trainer, "offleash_base"):
        trainer.offleash_base = FrozenBase(trainer)
    base: FrozenBase = trainer.offleash_base
    return base


class FrozenBase:
    """Hands out the base, for scoring and for sampling."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._copy: Any = None

    @contextmanager
    def scored(self) -> Iterator[Any]:
        """The base as a module that TRL's `_get_per_token_logps_and_entropies` takes, entropies included."""
        trainer = self.trainer
        if self._is_adapter():
            with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
                yield trainer.model
            return
        module = self._module()
        inner = trainer.accelerator.unwrap_model(module)
        forward = inner.forward
        # TRL gives its reference a head without the entropy; ours is on only in here, as it costs on every call.
        self._add_head(inner, ("log_probs", "entropy"))
        try:
            yield module
        finally:
            inner.forward = forward

    def _add_head(self, model: Any, outputs: tuple[str, ...]) -> None:
        add_fused_lm_head(
            model,
            temperature=self.trainer.temperature,
            cast_lm_head_to_fp32=self.trainer.args.cast_lm_head_to_fp32,
            outputs=outputs,
        )

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """The trainer's generation path draws from the base inside this block, from the policy again after it."""
        trainer = self.trainer
        if self._is_adapter():
            if trainer.use_vllm:
                raise MonitorError(
                    "the base pool is missing and cannot be drawn in the middle of a PEFT run with vLLM: "
                    "start the run from step 0, or put the base pool of an earlier run into base_pools"
                )
            with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
                yield
            return
        policy, wrapped = trainer.model, trainer.model_wrapped
        trainer.model = trainer.model_wrapped = self._module()
        if trainer.use_vllm:
            trainer.vllm_generation.model, trainer._last_loaded_step = trainer.model, -1
        try:
            yield
        finally:
            trainer.model, trainer.model_wrapped = policy, wrapped
            if trainer.use_vllm:
                trainer.vllm_generation.model, trainer._last_loaded_step = policy, -1

    def _is_adapter(self) -> bool:
        return is_peft_model(self.trainer.accelerator.unwrap_model(self.trainer.model))

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
        trainer = self.trainer
        source = get_config_model_id(trainer.model.config)
        trainer.accelerator.print(
            f"offleash: loading a frozen copy of {source} to measure the KL to the base, because the run keeps no "
            "fixed reference (beta = 0, or one that is reset). It takes the memory of one more model; "
            "kl_to_base=False spares it."
        )
        kwargs = dict(trainer.args.model_init_kwargs or {})
        kwargs.setdefault("dtype", trainer.model.dtype)
        kwargs.setdefault("attn_implementation", trainer.model.config._attn_implementation)
        if trainer.accelerator.num_processes > 1:
            kwargs["device_map"] = None
        model = create_model_from_path(source, **kwargs)
        disable_dropout_in_model(model)
        self._add_head(model, ("log_probs",))
        if trainer.is_deepspeed_enabled:
            return prepare_deepspeed(model, trainer.accelerator)
        if trainer.is_fsdp_enabled:
            return prepare_fsdp(model, trainer.accelerator)
        return trainer.accelerator.prepare_model(model, evaluation_mode=True)
