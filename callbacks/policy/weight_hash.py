"""A hash of weights where they are: on their device, each process its own part, to see whether frozen ones have moved.

It depends on every bit and on its place. It is no defence against somebody who wants two models to have one hash.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

CHUNK, WORD = 2**20, 8
"""Numbers that are hashed at once, so that some megabytes suffice, and the bytes of each."""
PRIME = 1_000_003


def hash_weights(weights: Iterable[tuple[str, Any]]) -> dict[str, int]:
    """By name, of the part of each weight that this process has; those of which it has nothing are left out."""
    parts = {name: _local(weight) for name, weight in weights}
    hashes = {name: _hash(part) for name, part in parts.items() if part.numel()}
    return dict(zip(hashes, torch.stack([*hashes.values()]).tolist(), strict=True)) if hashes else {}


def moved_weights(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Names of weights that are not what they were."""
    return [name for name in before if before[name] != now.get(name)]


def _local(weight: Any) -> torch.Tensor:
    """Under ZeRO-3 and FSDP 2 the part that belongs to this process."""
    part = getattr(weight, "ds_tensor", weight)
    part = part.to_local() if hasattr(part, "to_local") else part
    local: torch.Tensor = part.detach()
    return local


def _hash(weight: torch.Tensor) -> torch.Tensor:
    """One integer, modulo 2**64, on the CPU."""
    raw = weight.contiguous().flatten().view(torch.uint8)
    if raw.storage_offset() % WORD:
        raw = raw.clone()
    whole = raw.numel() // WORD * WORD
    total = torch.zeros((), dtype=torch.int64, device=raw.device)
    for numbers in (raw[:whole].view(torch.int64), raw[whole:].long()):
        places = 2 * torch.arange(min(CHUNK, numbers.numel()), device=raw.device) + 1
        for chunk in numbers.split(CHUNK):
            total = total * PRIME + (chunk * places[: chunk.numel()]).sum()
    return total.cpu()
