"""How and under which model completions are scored: what scoring a pool and scoring traces have in common."""

import math
import re
from dataclasses import dataclass

from offleash.eval.engines.model import ModelSource, is_url, resolve_model
from offleash.eval.errors import ConfigError
from offleash.eval.flags import setting
from offleash.eval.pool.settings import ModelSettings

_NAME = re.compile(r"\w[\w.@+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSettings(ModelSettings):
    """Raises ConfigError for a value out of range. `k`, `limit`, `name`, `force`, `save_every` concern pools only."""

    k: int | None = setting(None, "only the first K samples of each problem (default: all)")
    limit: int | None = setting(None, "only the first N problems", metavar="N")
    name: str | None = setting(None, "folder name of the scores (default: from the model's name)")
    temperature: float = setting(1.0, "divides the logits, for log-probability and entropy alike")
    end_token: str | None = setting(
        None,
        "token to append to completions that were not truncated (default: the tokenizer's; '' for none)",
        metavar="TOKEN",
    )
    force: bool = False
    """Score even if the model's template differs from the one the pool was sampled with."""
    batch_tokens: int = setting(16384, "padded tokens in one forward pass", metavar="N")

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
