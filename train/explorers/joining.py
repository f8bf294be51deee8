"""Rows of several generation batches as one batch: each was padded to its own length. Read against trl 1.16."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from offleash.eval.errors import ConfigError

ITEMS = "num_items_in_batch"
LEFT = ("prompt_ids", "prompt_mask")
FILLS: dict[str, float] = {
    "prompt_mask": 0,
    "completion_mask": 0,
    "tool_mask": 0,
    "advantages": 0,
    "outside": 0,
    "old_per_token_logps": 0,
    "ref_per_token_logps": 0,
    "sampling_per_token_logps": 0,
    "importance_sampling_ratio": 1,
}


def rows_of(batch: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Those rows of a batch, without the batch's token count, which is not theirs."""
    known = {"prompt_ids", "completion_ids", ITEMS, *FILLS}
    if strange := sorted(set(batch) - known):
        raise ConfigError(
            f"batches with {', '.join(strange)} cannot be joined: explorer dynamic_sampling works on text only; "
            "remove it from the recipe"
        )
    return {key: values[list(rows)] for key, values in batch.items() if key != ITEMS}


def joined(parts: Sequence[dict[str, Any]], pad_token_id: int) -> dict[str, Any]:
    """One after another: prompts padded on the left, all that belongs to completions on the right."""
    fills = {"prompt_ids": pad_token_id, "completion_ids": pad_token_id, **FILLS}
    return {key: _stacked([part[key] for part in parts], fills[key], key in LEFT) for key in parts[0]}


def _stacked(tensors: Sequence[torch.Tensor], fill: float, left: bool) -> torch.Tensor:
    if tensors[0].dim() == 1:
        return torch.cat(list(tensors))
    width = max(tensor.size(1) for tensor in tensors)
    gaps = [width - tensor.size(1) for tensor in tensors]
    padding = [(gap, 0) if left else (0, gap) for gap in gaps]
    return torch.cat([pad(t, p, value=fill) for t, p in zip(tensors, padding, strict=True)])
