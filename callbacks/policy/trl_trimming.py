"""Forward passes without columns of padding: each micro-batch is as wide as its own longest sequences, which are alike.

TRL pads a whole generation batch to its longest prompt and its longest completion, and keeps that width in every
micro-batch. Here columns that are padding in all rows of a forward pass are cut off before the model sees them, and
come back as zeros, which is what TRL's fused head gives for padding. Where a batch is scored chunk by chunk, rows of
similar length share a chunk. So shapes, masks and normalisations stay those of TRL, and numbers change by rounding
only. With dropout in the model the random numbers are other ones.

Positions must not depend on what was cut. Models with learned positions, which count from the first column, keep the
padding in front; rotary embeddings that are rescaled by the length of the batch (`dynamic`, `longrope`) keep all of it.

In the loss too rollouts of similar length share a micro-batch, with others of their optimizer step and rank. What a
step learns is the sum over its micro-batches. With l the loss of a token, m its mask, B rows in a micro-batch, A of
these in a step, S in a batch of rollouts, N tokens in all of that on R ranks, TRL's `_compute_loss` (trl 1.16) adds

    grpo, sapo            1 / (A B) sum_rows (sum_t l m / sum_t m)
    luspo                 1 / (A B) sum_rows sum_t l m
    dr_grpo               1 / (A B max_completion_length) sum_rows sum_t l m
    dapo, cispo, vespo    R S / (A N) sum_rows sum_t l m

for each, where l depends on its own row alone: its ratios, masks of off-policy rows, vLLM's importance ratios, the KL
term. Not so with `bnpo` and the entropy bonus, which divide by the tokens of a micro-batch, nor with the load-balancing
loss of mixtures of experts and `top_entropy_quantile`, which pool these: rows stay where TRL put them. Means over
micro-batches that TRL logs are taken over other ones. The order is a function of the lengths: the same rollouts are
dealt out in the same way.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from trl.trainer.utils import split_tensor_dict

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_internals import internals_of, weight_shards

Scorer = Callable[..., tuple[Any, Any, Any]]
Batch = dict[str, Any]

SCALED_BY_LENGTH = {"dynamic", "longrope"}
"""Types of rotary embedding whose frequencies depend on how wide the batch is."""

ADDS_UP_BY_ROW = {"grpo", "sapo", "luspo", "dr_grpo", "dapo", "cispo", "vespo"}
"""Values of `loss_type` with which a row's share of a step's gradient is the same in each of its micro-batches."""


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
    """What `prepare`, TRL's `_prepare_inputs` of a batch, gives, with new rollouts `in_order`.

    Relies on `_buffered_inputs`, the micro-batches of the latest rollouts, from which `_step` takes one.
    """
    inside = internals_of(trainer)
    former, inputs = inside._buffered_inputs, prepare()
    if inside._buffered_inputs is former:
        return inputs
    inside._buffered_inputs = in_order(trainer, inside._buffered_inputs)
    return inside._buffered_inputs[inside._step % trainer.args.steps_per_generation]


def in_order(trainer: PolicyTrainer, batches: list[Batch]) -> list[Batch]:
    """The micro-batches of rollouts: those of each optimizer step `by_length` where that is exact, the widest first.

    Where weights are sharded, a micro-batch takes as long as the widest one that any rank has at that moment: in this
    order they are alike, and whole micro-batches are put in it even where rows must stay together. The order is left
    alone where steps do not consist of whole batches of rollouts or the reverse, and where `auto_find_batch_size` may
    start a step anywhere: no row changes its step.
    """
    window, count = trainer.args.gradient_accumulation_steps, len(batches)
    is_aligned = not (count % window and window % count) and not trainer.args.auto_find_batch_size
    is_by_row, is_sharded = learns_by_row(trainer), weight_shards(trainer) is not None
    found: list[Batch] = []
    if not is_aligned or not (is_by_row or is_sharded):
        return batches
    for start in range(0, count, window):
        step = batches[start : start + window]
        dealt = by_length(step) if is_by_row else step
        found += step if dealt is step and not is_sharded else sorted(dealt, key=_width, reverse=True)
    return found


def learns_by_row(trainer: PolicyTrainer) -> bool:
    """Whether TRL's loss adds up by rows, and narrower micro-batches are cheaper.

    Relies on `_entropy_bonus_enabled` and `aux_loss_enabled`, which add terms with means of their own.
    """
    inside = internals_of(trainer)
    if inside._entropy_bonus_enabled or inside.aux_loss_enabled or inside.top_entropy_quantile < 1:
        return False
    return inside.loss_type in ADDS_UP_BY_ROW and trimmed(trainer, trainer.model) is not trainer.model


def by_length(step: list[Batch]) -> list[Batch]:
    """The rows of these micro-batches in as many of the same size, the longest first; the same list if they are of
    several sizes, have images, whose pixels are not by row, or if there is nothing to gain.

    Relies on batches being what `split_tensor_dict` makes: values by row, or without a dimension for all rows.

    >>> masks = [torch.tensor([[1, 1, 1], [1, 0, 0]]), torch.tensor([[1, 1, 0], [1, 1, 1]])]
    >>> step = [{"prompt_mask": mask, "completion_mask": mask, "total": mask.sum() * 0 + 9} for mask in masks]
    >>> [batch["prompt_mask"].tolist() for batch in by_length(step)]
    [[[1, 1, 1], [1, 1, 1]], [[1, 1, 0], [1, 0, 0]]]
    """
    sizes = {len(value) for batch in step for value in batch.values() if _is_by_row(value)}
    has_images = any(batch.get(key) is not None for batch in step for key in ("pixel_values", "num_images"))
    if len(step) == 1 or len(sizes) > 1 or sizes == {1} or has_images:
        return step
    lengths = torch.cat([batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1) for batch in step])
    order = lengths.argsort(descending=True, stable=True)
    rows = {key: _picked([batch[key] for batch in step], order) for key in step[0]}
    dealt: list[Batch] = split_tensor_dict(rows, len(step))
    return dealt


def _is_by_row(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, torch.Tensor) and value.dim() > 0)


def _picked(values: Sequence[Any], order: torch.Tensor) -> Any:
    """A field of all rows in this order; what is not by row is the same in all micro-batches."""
    if not _is_by_row(values[0]):
        return values[0]
    if isinstance(values[0], torch.Tensor):
        return torch.cat(list(values))[order]
    joined = [one for value in values for one in value]
    return [joined[i] for i in order.tolist()]


def _width(batch: Batch) -> int:
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
