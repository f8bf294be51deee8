"""How much a rollout counts after TRL's correction for the difference between vLLM and the trainer.

The two engines give a token log-probabilities that differ by rounding. TRL weighs rollouts by the ratio of the two, by
default that of the whole completion, and drops those above `vllm_importance_sampling_clip_max`. If the differences of
tokens are independent with standard deviation s, the logarithm of a completion's ratio is normal with variance
v = n s^2 and mean -v/2, so that unclipped weights have mean 1, and with the clip c

    mask      E[w; w < c]    = Phi((ln c - v/2) / sqrt v)
    truncate  E[min(w, c)]   = the same + c (1 - Phi((ln c + v/2) / sqrt v))

The longer a completion, the less it counts: steps shrink, and length is punished. By token (`token_truncate`) v is s^2,
and the mean stays 1.
"""

from math import log, sqrt
from statistics import NormalDist

from trl import GRPOConfig

MISMATCH = 0.02
"""Nats per token between vLLM and the trainer in bfloat16: a typical value, not a measured one."""
LOW = 0.8
"""A mean weight below this is worth a warning: updates are a fifth smaller than the recipe says."""


def mean_weight(tokens: int, mode: str, clip: float | None, mismatch: float = MISMATCH) -> float:
    """Of a completion of so many tokens, under one of TRL's `vllm_importance_sampling_mode`s."""
    level, _, constraint = mode.partition("_")
    v = mismatch**2 * (tokens if level == "sequence" else 1)
    if clip is None or v == 0:
        return 1.0
    normal = NormalDist()
    below = normal.cdf((log(clip) - v / 2) / sqrt(v))
    if constraint == "mask":
        return below
    return below + clip * (1 - normal.cdf((log(clip) + v / 2) / sqrt(v)))


def weight_notes(training: GRPOConfig) -> list[str]:
    """A line if the longest completions of a recipe would hardly count."""
    if not (training.use_vllm and training.vllm_importance_sampling_correction):
        return []
    mode, tokens = training.vllm_importance_sampling_mode, training.max_completion_length
    weight = mean_weight(tokens, mode, training.vllm_importance_sampling_clip_max)
    if weight >= LOW:
        return []
    return [
        f"vllm_importance_sampling_mode {mode}: if vLLM and the trainer differ by {MISMATCH} nats a token, a "
        f"completion of {tokens} tokens has a mean importance weight of {weight:.2f}; with token_truncate it is near 1"
    ]
