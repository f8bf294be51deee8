"""The time a run takes: operations per token, and the memory traffic of generation.

A forward pass costs 2 operations per parameter and token, a backward pass twice that (arXiv 2001.08361, section 2.1).
Generation is bound by reading the weights once per step and the cache once per token, or by arithmetic where that takes
longer. `EFFICIENCY` and `TRAFFIC` are the fractions of a device's peak that are reached: assumptions, which are stated
with every estimate.
"""

from typing import NamedTuple

from offleash.train.forecast.hardware import Device
from offleash.train.forecast.memory import HALF, cache_bytes
from offleash.train.forecast.model_size import ModelSize

EFFICIENCY = 0.3
"""Fraction of peak arithmetic (MFU) reached by updates and prefill."""
TRAFFIC = 0.5
"""Fraction of peak memory bandwidth reached by generation."""
STEP_SECONDS = 0.005
"""Overhead of a decoding step, for any model: scheduling and kernel launches."""


class Lengths(NamedTuple):
    """Mean tokens of a prompt and of a completion, and the longest completion, for which generation waits."""

    prompt: float
    completion: float
    longest: int


def rollout_seconds(
    model: ModelSize,
    device: Device,
    gpus: int,
    sequences: float,
    lengths: Lengths,
    at_once: float,
    *,
    engine_gpus: int = 1,
    efficiency: float = EFFICIENCY,
    weight_bytes: int = HALF,
) -> float:
    """To generate `sequences` on engines of `engine_gpus` GPUs, each of which holds at most `at_once` sequences."""
    engines = gpus / engine_gpus
    each = sequences / engines
    steps = max(lengths.longest, each / at_once * lengths.completion)
    weights = model.parameters * weight_bytes
    context = lengths.prompt + lengths.completion / 2
    cache = each * lengths.completion * context * cache_bytes(model, weight_bytes)
    reading = steps * STEP_SECONDS + (steps * weights + cache) / (engine_gpus * device.bandwidth * TRAFFIC)
    tokens = each * (lengths.prompt + lengths.completion)
    computing = 2 * model.parameters * tokens / (engine_gpus * device.flops * efficiency)
    return max(reading, computing)


def update_seconds(
    model: ModelSize,
    device: Device,
    gpus: int,
    sequences: float,
    lengths: Lengths,
    *,
    checkpointing: bool,
    reference: bool,
    old: bool,
    iterations: int = 1,
    efficiency: float = EFFICIENCY,
) -> float:
    """To train on `sequences`: forward 2, backward 4 (2 for an adapter), forward 2 again with activation checkpointing.

    Once per rollout, not per iteration: 2 for the reference's log-probabilities, 2 for the policy's old ones.
    """
    per_token = 2 + (2 if model.adapter else 4) + 2 * checkpointing + (2 * reference + 2 * old) / iterations
    tokens = sequences * (lengths.prompt + lengths.completion)
    return per_token * model.parameters * tokens / (gpus * device.flops * efficiency)


def scoring_seconds(
    model: ModelSize, device: Device, gpus: int, sequences: float, lengths: Lengths, efficiency: float = EFFICIENCY
) -> float:
    """To score samples under policy and base: two forward passes."""
    return 4 * model.parameters * sequences * (lengths.prompt + lengths.completion) / (gpus * device.flops * efficiency)


def measurements(steps: int, every: int) -> int:
    """How often the monitor samples: the base, step 0, every `every` steps and the last one. 0 if it is off."""
    if not every:
        return 0
    return 2 + steps // every + (steps % every > 0)
