"""The time a run takes: operations per token, and the memory traffic of generation.

A forward pass costs 2 operations per parameter and token, and in each layer 2 per unit of query width for each pair of
tokens that attend to each other; a backward pass twice that (arXiv 2001.08361, section 2.1). An update pads each of its
micro-batches, dealt out by length where that changes nothing, to the longest sequence. Generation is bound by reading
the weights once per step and the cache once per token, or by arithmetic where that takes longer. How much of a device's
peak is reached is `hardware.Pace`.
"""

import math

from offleash.train.forecast.hardware import Machines
from offleash.train.forecast.lengths import Lengths, Size
from offleash.train.forecast.memory import HALF, cache_bytes
from offleash.train.forecast.model_size import ModelSize


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
    """To generate `sequences` on engines of `engine_gpus` GPUs, each of which holds at most `at_once` sequences.

    Each engine ends with its longest one.
    """
    each, pace = sequences * engine_gpus / machines.gpus, machines.pace
    steps = max(lengths.longest_of(each), each / at_once * lengths.completion)
    weights = model.parameters * weight_bytes
    # The i-th token of a completion reads the prompt and the i tokens before it.
    pairs = (lengths.padded().square - lengths.prompt**2) / 2
    cache = each * pairs * cache_bytes(model, weight_bytes)
    reading = steps * pace.step + (steps * weights + cache) / (engine_gpus * machines.device.bandwidth * pace.bandwidth)
    return max(reading, forward_seconds(model, machines, sequences, lengths.padded()))


def rounds_seconds(
    model: ModelSize,
    machines: Machines,
    sequences: float,
    lengths: Lengths,
    at_once: float,
    per_round: float,
    **engine: int,
) -> float:
    """To generate them in rounds of at most `per_round`, each of which ends with its longest."""
    rounds = max(math.ceil(sequences / per_round), 1)
    return rounds * rollout_seconds(model, machines, sequences / rounds, lengths, at_once, **engine)


def forward_seconds(model: ModelSize, machines: Machines, sequences: float, size: Size) -> float:
    """One forward pass over sequences of this size."""
    operations = 2 * model.parameters * size.tokens + 2 * model.layers * model.query * size.square
    return sequences * operations / machines.flops


def update_seconds(
    model: ModelSize,
    machines: Machines,
    sequences: float,
    size: Size,
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
    return passes * forward_seconds(model, machines, sequences, size)


def measurements(steps: int | None, every: int) -> int | None:
    """How often the monitor samples: the base, step 0, every `every` steps and the last one. 0 if it is off."""
    if not every:
        return 0
    return None if steps is None else 2 + steps // every + (steps % every > 0)
