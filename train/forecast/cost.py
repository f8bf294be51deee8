"""Seconds and money of a run: operations counted per token, and the memory traffic of generating.

A forward pass costs 2 operations per parameter and token, a backward pass twice that (arXiv 2001.08361, section 2.1).
Generating is bound by reading the weights once per step and the cache once per token, or by arithmetic where that takes
longer. `EFFICIENCY` and `TRAFFIC` say how much of a device's peak is reached; they are assumptions, stated with every
estimate.
"""

from typing import NamedTuple

from offleash.train.forecast.hardware import Device
from offleash.train.forecast.memory import HALF, cache_bytes
from offleash.train.forecast.model_size import ModelSize

EFFICIENCY = 0.3
"""Share of peak arithmetic (MFU) that updates and prefills reach."""
TRAFFIC = 0.5
"""Share of peak memory bandwidth that generating reaches."""
STEP_SECONDS = 0.005
"""Of one decoding step besides, however small the model: scheduling and launching kernels."""


class Lengths(NamedTuple):
    """Tokens of a prompt and of a completion: the mean, and the longest that generation waits for."""

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
    """To draw `sequences` on engines of `engine_gpus` each, every one holding `at_once` sequences at most."""
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
    """To train on `sequences`: forward 2, backward 4 (2 for an adapter), again forward 2 where activations are redone.

    Of each rollout once, not in every iteration: 2 for the reference's log-probabilities, 2 for the policy's old ones.
    """
    per_token = 2 + (2 if model.adapter else 4) + 2 * checkpointing + (2 * reference + 2 * old) / iterations
    tokens = sequences * (lengths.prompt + lengths.completion)
    return per_token * model.parameters * tokens / (gpus * device.flops * efficiency)


def scoring_seconds(
    model: ModelSize, device: Device, gpus: int, sequences: float, lengths: Lengths, efficiency: float = EFFICIENCY
) -> float:
    """To score samples under the policy and under the base: two forward passes."""
    return 4 * model.parameters * sequences * (lengths.prompt + lengths.completion) / (gpus * device.flops * efficiency)


def measurements(steps: int, every: int) -> int:
    """How often the monitor draws: the base, step 0, every `every` steps and the last one. 0 if it is off."""
    if not every:
        return 0
    return 2 + steps // every + (steps % every > 0)
