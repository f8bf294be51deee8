"""How and under which model completions are scored: what scoring a pool and scoring traces have in common."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offleash.eval.engines.model import ModelSource, is_url, resolve_model
from offleash.eval.errors import ConfigError

_NAME = re.compile(r"\w[\w.@+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSettings:
    """Raises ConfigError for a value out of range. `k`, `limit`, `name`, `force`, `save_every` concern pools only."""

    k: int | None = None
    """Only the first k samples of each problem; None is all."""
    limit: int | None = None
    """Only the first problems; None is all."""
    name: str | None = None
    """Of the folder of scores; None makes one from the model's name."""
    temperature: float = 1.0
    """Divides the logits, for log-probability and entropy alike."""
    template: str = "auto"
    """"auto", "plain" or a file with a chat template, as in `offleash sample`."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    end_token: str | None = None
    """Appended to completions that were not truncated; None is the tokenizer's, "" appends none."""
    force: bool = False
    """Score even if the model's template differs from the one the pool was sampled with."""
    batch_tokens: int = 16384
    """Padded tokens in one forward pass."""
    save_every: float = 10.0
    """Seconds between parts written to disk."""
    dtype: str = "auto"
    revision: str | None = None
    tokenizer: str | None = None
    """As in `resolve_model`."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature must be above 0 and finite, got {self.temperature:g}")
        if not self.save_every >= 0:
            raise ConfigError(f"save_every must be 0 seconds or more, got {self.save_every:g}")
        for name in ("k", "limit", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ConfigError(f"name must consist of letters, digits and .@+-_ (it names a folder), got {self.name!r}")


def resolve_scorer(model: str, settings: ScoreSettings) -> ModelSource:
    """`resolve_model` for a model that is loaded here: a server does not return full distributions."""
    if is_url(model):
        raise ConfigError(f"model {model} is a server, which does not return full distributions: name the weights")
    return resolve_model(model, revision=settings.revision, tokenizer=settings.tokenizer, dtype=settings.dtype)
