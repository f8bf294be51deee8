"""The size of a checkpoint: bytes per parameter of what the Trainer writes.

ZeRO in mixed precision: 2 bytes of weights, 4 of their float32 copy and 8 of AdamW's moments, and below stage 3, where
every rank has all weights, those 2 once more in DeepSpeed's own file. Without DeepSpeed the weights, and the moments in
their dtype; FSDP writes the weights twice (not run). An adapter is all that is written of its model.
"""

from typing import NamedTuple

from offleash.train.forecast.memory import FULL, HALF, Layout
from offleash.train.forecast.model_size import ModelSize
from offleash.train.recipe.config import Recipe


class Disk(NamedTuple):
    """In bytes."""

    checkpoint: float
    """One checkpoint."""
    model: float
    """The weights alone: a checkpoint under `save_only_model`, and the final model."""
    kept: int | None
    """Checkpoints at a time, with the one being written; None if all are kept."""


def disk(recipe: Recipe, model: ModelSize, layout: Layout) -> Disk | None:
    """None if no checkpoints are written."""
    training = recipe.training
    if training.save_strategy == "no":
        return None
    zero = layout.sharding.startswith("zero")
    upcast = model.adapter or (layout.sharding == "fsdp" and layout.half)
    weight = HALF if zero and layout.half else FULL if upcast else layout.weight_bytes
    again = weight if layout.sharding in ("zero0", "zero1", "zero2", "fsdp") else 0
    states = FULL + layout.moments_bytes if zero else layout.moments_bytes * weight / FULL
    each = weight if training.save_only_model else weight + again + states
    limit = training.save_total_limit
    return Disk(each * model.trained, weight * model.trained, None if not limit else limit + 1)
