"""Forward passes without columns of padding: each micro-batch is as wide as its own longest sequences.

TRL pads a whole generation batch to its longest prompt and its longest completion, and keeps that width in every
micro-batch. Here columns that are padding in all rows of a forward pass are cut off before the model sees them, and
come back as zeros, which is what TRL's fused head gives for padding. Where a batch is scored chunk by chunk, rows of
similar length share a chunk. So shapes, masks and normalisations stay those of TRL, and numbers change by rounding
only. With dropout in the model the random numbers are other ones.

Positions must not depend on what was cut. Models with learned positions, which count from the first column, keep the
padding in front; rotary embeddings that are rescaled by the length of the batch (`dynamic`, `longrope`) keep all of it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import pad

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_internals import internals_of, weight_shards

Scorer = Callable[..., tuple[Any, Any, Any]]

SCALED_BY_LENGTH = {"dynamic", "longrope"}
"""Types of rotary embedding whose frequencies depend on how wide the batch is."""


def without_padding(
    trainer: PolicyTrainer,
    score: Scorer,
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    batch_size: int | None = None,
    **others: Any,
) -> tuple[Any, Any, Any]:
    """What `score`, TRL's `_get_per_token_logps_and_entropies`, gives for these arguments, with less computed.

    Relies on rows being independent but for the load-balancing loss, and on pixels coming in the order of rows.
    """
    model, rows = trimmed(trainer, model), (input_ids, attention_mask)
    is_text = not any(isinstance(value, torch.Tensor | list) for value in others.values())
    if not batch_size or batch_size >= len(input_ids) or not is_text or others.get("compute_aux_loss"):
        return score(model, *rows, logits_to_keep, batch_size=batch_size, **others)
    order = attention_mask.sum(1).argsort(stable=True)
    found = score(model, *(each[order] for each in rows), logits_to_keep, batch_size=batch_size, **others)
    logps, entropies, aux_loss = found
    back = order.argsort()
    return logps[back], None if entropies is None else entropies[back], aux_loss


def in_step(trainer: PolicyTrainer, prepare: Callable[[], Any]) -> Any:
    """What `prepare`, TRL's `_prepare_inputs` of a batch, gives, with new rollouts in the order of `widest_first`.

    Relies on `_buffered_inputs`, the micro-batches of the latest rollouts, from which `_step` takes one.
    """
    inside = internals_of(trainer)
    former, inputs = inside._buffered_inputs, prepare()
    if inside._buffered_inputs is former:
        return inputs
    inside._buffered_inputs = widest_first(trainer, inside._buffered_inputs)
    return inside._buffered_inputs[inside._step % trainer.args.steps_per_generation]


def widest_first(trainer: PolicyTrainer, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The micro-batches of each optimizer step, the widest first.

    Where weights are sharded, a micro-batch takes as long as the widest one that any rank has at that moment: in this
    order they are alike. What is summed up in a step stays the same; means over micro-batches that TRL logs are taken
    over other pairs of ranks. Without sharding, and where steps do not consist of whole batches of rollouts or the
    reverse, the order is left alone.
    """
    window, count = trainer.args.gradient_accumulation_steps, len(batches)
    if weight_shards(trainer) is None or (count % window and window % count):
        return batches
    steps = [batches[start : start + window] for start in range(0, count, window)]
    return [batch for step in steps for batch in sorted(step, key=_width, reverse=True)]


def _width(batch: dict[str, Any]) -> int:
    return sum(last - first for first, last in map(kept_columns, (batch["prompt_mask"], batch["completion_mask"])))


def trimmed(trainer: PolicyTrainer, model: Any) -> Any:
    """The model as `_get_per_token_logps_and_entropies` may call it, or itself where no column may be cut off.

    Relies on that method calling the model by keywords, with `attention_mask`, `labels` and `fused_lm_head`, and on
    fields of the fused head being (B, T - 1) and 0 where nothing is to be scored. `pad_to_multiple_of` is respected.
    """
    types = _rotary_types(trainer.model.config.get_text_config())
    if isinstance(model, Trimmed) or types & SCALED_BY_LENGTH:
        return model
    return Trimmed(model, is_relative=bool(types), multiple=internals_of(trainer).pad_to_multiple_of or 1)


class Trimmed:
    """A model whose forward passes over padded rows leave out columns of padding."""

    def __init__(self, model: Any, *, is_relative: bool, multiple: int) -> None:
        self.model, self.is_relative, self.multiple = model, is_relative, multiple

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, **inputs: Any) -> Any:
        mask = inputs.get("attention_mask")
        if not inputs.get("fused_lm_head") or mask is None:
            return self.model(**inputs)
        first, last = kept_columns(mask, self.multiple)
        first, width = first if self.is_relative else 0, mask.size(1)
        output = self.model(**{name: _cut(value, mask.shape, first, last) for name, value in inputs.items()})
        for name, value in output.items():
            if value is not None and value.dim() == 2:
                output[name] = pad(value, (first, width - last))
        return output


def kept_columns(mask: torch.Tensor, multiple: int = 1) -> tuple[int, int]:
    """The first column with a token in any row, and the one after the last; both sides are cut by whole multiples.

    >>> kept_columns(torch.tensor([[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]]))
    (1, 5)
    >>> kept_columns(torch.tensor([[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]]), 2)
    (0, 6)
    """
    width = mask.size(1)
    used = mask.any(0).nonzero()
    if not len(used):
        return 0, width
    first, after = int(used[0]), width - int(used[-1]) - 1
    return first - first % multiple, width - (after - after % multiple)


def _cut(value: Any, shape: torch.Size, first: int, last: int) -> Any:
    """Whatever has a value for each token: ids, masks, labels and types of tokens. Pixels have other shapes."""
    return value[:, first:last] if isinstance(value, torch.Tensor) and value.shape[:2] == shape else value


def _rotary_types(config: Any) -> set[str]:
    """Those of all kinds of layers; empty for a model without rotary embeddings."""
    return set(_types_in(getattr(config, "rope_parameters", None)))


def _types_in(parameters: Any) -> Iterator[str]:
    if isinstance(parameters, dict):
        if "rope_type" in parameters:
            yield str(parameters["rope_type"])
        for inner in parameters.values():
            yield from _types_in(inner)
