"""Bytes that a GPU needs, by part: model states, activations, and the cache of generation.

States follow the ZeRO paper (arXiv 1910.02054, section 3): with AdamW and half precision 2 bytes of weights, 2 of
gradients and 12 of optimizer state per trained parameter, divided over the GPUs stage by stage. Activations assume
fused attention. The estimates are upper bounds, high by some tens of percent, not measurements.
"""

from dataclasses import dataclass

from offleash.train.forecast.hardware import GIB, Sharding
from offleash.train.forecast.model_size import ModelSize

HALF, FULL = 2, 4
LIVE_PARAMETERS = 10**9
"""The parameters that DeepSpeed gathers at once, at most (stage3_max_live_parameters)."""
LOGIT_TILE = 4096 * 32768
"""TRL 1.16 computes log-probabilities in tiles of tokens x vocabulary, never the full matrix."""
CONTEXT_BYTES = 1.5 * GIB
"""The CUDA context, kernels and communication buffers of a process."""
VLLM_RUNTIME_BYTES = 1.5 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What determines memory besides the model. `tokens` is the longest sequence, `weight_bytes` per parameter."""

    gpus: int
    sharding: Sharding
    half: bool
    weight_bytes: int
    moments_bytes: float
    """Of the optimizer, per trained float32 parameter: 8 for AdamW, 2 for its 8-bit version."""
    reference: bool
    base_copy: bool
    """Of the frozen base, in addition to the reference."""
    checkpointing: bool
    micro_batch: int
    tokens: int
    rollouts: int
    """Generated at once on one GPU without vLLM."""
    monitor_tokens: int
    """Of all sequences that the monitor generates at once on one GPU without vLLM."""
    vllm_share: float
    """Fraction of a GPU's memory; 0 without vLLM on the training GPUs."""
    vllm_gpus: int
    sleeps: bool


def states(model: ModelSize, layout: Layout) -> dict[str, float]:
    """Weights, gradients and optimizer state of the policy, and the frozen models, on each GPU.

    In mixed precision DeepSpeed keeps half-precision weights and a float32 copy, and below it ZeRO-2 and ZeRO-3 have
    float32 gradients (`preflight/precision.py`); Accelerate 1.15 casts the trained weights to float32 for FSDP. DDP's
    buckets are a second copy of the gradients.
    """
    engine = layout.sharding.startswith("zero") and layout.half
    weight = HALF if engine else layout.weight_bytes
    upcast = model.adapter or (layout.sharding == "fsdp" and layout.half)
    trained_weight = FULL if upcast and not engine else weight
    moments = FULL + layout.moments_bytes if engine else layout.moments_bytes * trained_weight / FULL
    gradient = FULL if engine and layout.sharding in ("zero2", "zero3") else trained_weight
    over = _divided_by(layout)
    frozen = model.parameters * weight if model.adapter else 0
    copies = HALF if layout.half and not engine and layout.weight_bytes == FULL and layout.sharding == "none" else 0
    buckets = model.trained * trained_weight if layout.sharding == "none" and layout.gpus > 1 else 0
    whole = 0 if model.adapter else model.parameters * weight / over[0]  # a second model; an adapter needs none
    return {
        "weights": (frozen + model.trained * trained_weight) / over[0],
        "half-precision copies of weights": model.parameters * copies,
        "gradients": model.trained * gradient / over[1],
        "gradient buckets": buckets,
        "optimizer": model.trained * moments / over[2],
        "reference model": whole * layout.reference,
        "copy of the base": whole * layout.base_copy,
        "gathered weights": _gathered(model, layout),
    }


def training(model: ModelSize, layout: Layout) -> dict[str, float]:
    """What an update needs in addition to the states."""
    width = HALF if layout.half or layout.weight_bytes == HALF else FULL
    tokens = layout.micro_batch * layout.tokens
    layer = width * (4 * model.hidden + 2 * model.query + 2 * model.key_value + 4 * model.intermediate)
    layer += 2 * FULL * model.hidden  # norms are computed in float32
    kept = model.layers * width * model.hidden + 2 * layer if layout.checkpointing else model.layers * layer
    head = 0 if model.adapter else model.vocabulary * model.hidden * FULL
    tile = min(LOGIT_TILE, tokens * model.vocabulary) * (width + FULL)
    return {"activations": tokens * kept, "logits": tile + head}


def generating(model: ModelSize, layout: Layout, memory: float) -> float:
    """What generation needs in addition to the states: vLLM's share of the memory, or the cache of every sequence.

    Without vLLM TRL gathers all weights under ZeRO-3 (ds3_gather_for_generation).
    """
    if layout.vllm_share:
        return layout.vllm_share * memory
    width = HALF if layout.weight_bytes == HALF else FULL
    rest = model.parameters * width - _gathered(model, layout) if layout.sharding == "zero3" and layout.rollouts else 0
    return cache_bytes(model, width) * max(layout.rollouts * layout.tokens, layout.monitor_tokens) + rest


def vllm_sequences(model: ModelSize, layout: Layout, memory: float) -> float:
    """How many of the longest sequences vLLM's share can cache at once; below 1 it does not start."""
    share = layout.vllm_share * memory - VLLM_RUNTIME_BYTES
    left = layout.vllm_gpus * share - model.parameters * HALF
    return left / (cache_bytes(model, HALF) * layout.tokens)


def cache_bytes(model: ModelSize, width: int) -> int:
    """Bytes of one token's keys and values in all layers."""
    return 2 * model.layers * model.key_value * width


def _divided_by(layout: Layout) -> tuple[int, int, int]:
    """Over how many GPUs weights, gradients and optimizer state are divided."""
    divided = {"none": 0, "zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}[layout.sharding]
    return (layout.gpus if divided > 2 else 1, layout.gpus if divided > 1 else 1, layout.gpus if divided else 1)


def _gathered(model: ModelSize, layout: Layout) -> float:
    if layout.sharding == "zero3":
        return min(model.parameters, LIVE_PARAMETERS) * HALF
    if layout.sharding == "fsdp":
        width = HALF if layout.half else layout.weight_bytes
        if not model.adapter and (layout.reference or layout.base_copy):  # TRL 1.16 shards a frozen model as one unit
            return model.parameters * width
        embeddings = 2 * model.vocabulary * model.hidden  # one layer, the next one, and the head with the embeddings
        return (2 * (model.parameters - embeddings) / model.layers + embeddings) * width
    return 0.0
