"""The time a run takes: operations per token, and the memory traffic of generation.

A forward pass costs 2 operations per parameter and token, a backward pass twice that (arXiv 2001.08361, section 2.1).
Generation is bound by reading the weights once per step and the cache once per token, or by arithmetic where that takes
longer. `Machines.efficiency` and `TRAFFIC` are the fractions of a device's peak that are reached: assumptions, which
are stated with every estimate.
"""

from typing import NamedTuple

from offleash.train.forecast.hardware import Machines
from offleash.train.forecast.memory import HALF, cache_bytes
from offleash.train.forecast.model_size import ModelSize

TRAFFIC = 0.5
"""Fraction of peak memory bandwidth reached by generation."""
STEP_SECONDS = 0.005
"""Overhead of a decoding step, for any model: scheduling and kernel launches."""


class Lengths(NamedTuple):
    """Mean tokens of a prompt and of a completion, and the longest completion, for which generation waits."""

    prompt: float
    completion: float
    longest: int

    @property
    def both(self) -> float:
        return self.prompt + self.completion


def rollout_seconds(
    model: ModelSize,
    machines: Machines,
    sequences: float,
    lengths: Lengths,
    at_once: float,
    *,
    engine_gpus: int = 1,
    weight_bytes: int = HALF,
) -> float:
    """To generate `sequences` on engines of `engine_gpus` GPUs, each of which holds at most `at_once` sequences."""
    each = sequences * engine_gpus / machines.gpus
    steps = max(lengths.longest, each / at_once * lengths.completion)
    weights = model.parameters * weight_bytes
    context = lengths.prompt + lengths.completion / 2
    cache = each * lengths.completion * context * cache_bytes(model, weight_bytes)
    reading = steps * STEP_SECONDS + (steps * weights + cache) / (engine_gpus * machines.device.bandwidth * TRAFFIC)
    return max(reading, forward_seconds(model, machines, sequences, lengths))


def forward_seconds(model: ModelSize, machines: Machines, sequences: float, lengths: Lengths) -> float:
    """One forward pass: 2 operations per parameter and token."""
    return 2 * model.parameters * sequences * lengths.both / machines.flops


def update_seconds(
    model: ModelSize,
    machines: Machines,
    sequences: float,
    lengths: Lengths,
    *,
    checkpointing: bool,
    reference: bool,
    old: bool,
    iterations: int = 1,
) -> float:
    """To train on `sequences`. A backward pass costs two forward passes (one for an adapter), activation checkpointing
    one more.

    Once per rollout, not per iteration: the log-probabilities of the reference, and the policy's old ones.
    """
    passes = 1 + (1 if model.adapter else 2) + checkpointing + (reference + old) / iterations
    return passes * forward_seconds(model, machines, sequences, lengths)


def measurements(steps: int | None, every: int) -> int | None:
    """How often the monitor samples: the base, step 0, every `every` steps and the last one. 0 if it is off."""
    if not every:
        return 0
    return None if steps is None else 2 + steps // every + (steps % every > 0)
