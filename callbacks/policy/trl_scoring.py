"""Log-probabilities by the trainer's own forward pass, and models prepared for it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from transformers import Trainer
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import utils

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_internals import internals_of
from offleash.callbacks.policy.trl_trimming import without_padding


def token_logps(
    trainer: PolicyTrainer,
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    completion_length: int,
    *,
    batch_size: int | None = None,
    entropies: bool = False,
    **pixels: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T) log-probabilities of the last `completion_length` tokens at the training temperature, and entropies.

    Relies on `_get_per_token_logps_and_entropies`; without `entropies` the second may be None.
    """
    logps, entropy, _ = without_padding(
        trainer,
        internals_of(trainer)._get_per_token_logps_and_entropies,
        model,
        input_ids,
        attention_mask,
        completion_length,
        batch_size=batch_size,
        compute_entropy=entropies,
        **pixels,
    )
    return logps, entropy


@contextmanager
def scoring(trainer: PolicyTrainer) -> Iterator[None]:
    """Inside the block forward passes of the policy have no gradients, no gradient checkpointing and no dropout."""
    was_training = trainer.model.training
    trainer.model.eval()
    try:
        with torch.no_grad(), without_gradient_checkpointing(trainer):
            yield
    finally:
        trainer.model.train(was_training)


def token_logits(
    trainer: PolicyTrainer, model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """(B, T, V) in float32, without dropout. Relies on the fused head giving logits where no labels are asked for."""
    was_training, device = model.training, trainer.accelerator.device
    mask = torch.ones_like(ids) if mask is None else mask
    model.eval()
    try:
        with torch.no_grad():
            logits: torch.Tensor = model(
                input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False
            ).logits
    finally:
        model.train(was_training)
    return logits.float()


def without_gradient_checkpointing(trainer: PolicyTrainer) -> AbstractContextManager[None]:
    """Inside the block forward passes of the policy are plain ones. Relies on `disable_gradient_checkpointing`."""
    context: AbstractContextManager[None] = disable_gradient_checkpointing(
        trainer.model, trainer.args.gradient_checkpointing_kwargs
    )
    return context


@contextmanager
def entropy_head(trainer: PolicyTrainer, model: Any) -> Iterator[None]:
    """Inside the block `token_logps` of this model gives entropies too: TRL's reference has a head without them.

    Relies on `add_fused_lm_head` replacing the model's `forward`.
    """
    forward = model.forward
    _add_head(trainer, model, ("log_probs", "entropy"))
    try:
        yield
    finally:
        model.forward = forward


def _add_head(trainer: PolicyTrainer, model: Any, outputs: tuple[str, ...]) -> None:
    cast_head = trainer.args.cast_lm_head_to_fp32
    utils.add_fused_lm_head(model, temperature=trainer.temperature, cast_lm_head_to_fp32=cast_head, outputs=outputs)


def load_reference(trainer: PolicyTrainer, source: str) -> Any:
    """A frozen model loaded and prepared as TRL does with its KL reference.

    Relies on `create_model_from_path`, `disable_dropout_in_model`, `add_fused_lm_head`, `prepare_deepspeed` and
    `prepare_fsdp`, and on the config's `_attn_implementation`.
    """
    kwargs = dict(trainer.args.model_init_kwargs or {})
    kwargs.setdefault("dtype", trainer.model.dtype)
    kwargs.setdefault("attn_implementation", trainer.model.config._attn_implementation)
    kwargs.setdefault("trust_remote_code", trainer.args.trust_remote_code)  # as TRL does, on a copy of its own
    if trainer.accelerator.num_processes > 1:
        kwargs["device_map"] = None
    model = utils.create_model_from_path(source, **kwargs)
    utils.disable_dropout_in_model(model)
    _add_head(trainer, model, ("log_probs",))
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(model, trainer.accelerator)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(model, trainer.accelerator)
    return trainer.accelerator.prepare_model(model, evaluation_mode=True)


def model_id(model: Any) -> str:
    """Where the model was loaded from: a folder or a hub id. Relies on `get_config_model_id`."""
    return str(utils.get_config_model_id(model.config))


def to_device(trainer: PolicyTrainer, inputs: dict[str, Any]) -> dict[str, Any]:
    """Tensors on the trainer's device, in the dtype that DeepSpeed asks for.

    Relies on the Trainer's own `_prepare_inputs`, not on TRL's, which draws rollouts.
    """
    moved: dict[str, Any] = Trainer._prepare_inputs(trainer, inputs)
    return moved


def nanstd(values: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The standard deviation by which TRL divides advantages. Relies on `trl.trainer.utils.nanstd`."""
    deviation: torch.Tensor = utils.nanstd(values, dim=dim, keepdim=keepdim)
    return deviation
