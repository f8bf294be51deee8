"""How completions are drawn: the sampling parameters, how many draws each problem gets, and the seeds."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offleash.eval.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Every parameter that shapes the distribution of a completion. The defaults are off: no engine adds its own.

    `stop` lists texts that end a completion and are cut from it; a model's own end tokens are not among them.

    >>> from offleash.eval import Sampling
    >>> sampling = Sampling(max_new_tokens=512, temperature=0.6, top_p=0.95)
    >>> sampling.top_k, sampling.min_p, sampling.repetition_penalty, sampling.stop
    (0, 0.0, 1.0, ())
    >>> sampling.untruncated
    False
    >>> Sampling(max_new_tokens=512, top_p=95)
    Traceback (most recent call last):
    offleash.eval.errors.ConfigError: top_p must be above 0 and at most 1 (1: off), got 95
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError(
                f"temperature must be above 0 and finite, got {self.temperature}: at 0 every draw of a "
                "problem is the same"
            )
        ranges = {
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1 (1: off)"),
            "top_k": (is_int(self.top_k) and self.top_k >= 0, "an integer, 0 (off) or more"),
            "min_p": (0 <= self.min_p < 1, "at least 0 (off) and below 1"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0 (1: off)"),
            "max_new_tokens": (is_int(self.max_new_tokens) and self.max_new_tokens >= 1, "an integer, at least 1"),
        }
        for name, (good, wanted) in ranges.items():
            if not good:
                raise ConfigError(f"{name} must be {wanted}, got {getattr(self, name)}")
        if "" in self.stop:
            raise ConfigError("an empty stop text would end every completion at once: leave it out")

    @property
    def untruncated(self) -> bool:
        """True if samples follow the model's own distribution at this temperature, nothing cut or penalized."""
        return is_untruncated(self.top_p, self.top_k, self.min_p, self.repetition_penalty)


def is_int(value: object) -> bool:
    """True for an integer, which True and False are not meant to be."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_untruncated(top_p: float, top_k: int, min_p: float, repetition_penalty: float) -> bool:
    """True if these settings leave the model's distribution unchanged."""
    return (top_p, top_k, min_p, repetition_penalty) == (1.0, 0, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many of its k draws a problem gets: all of them, or as many as it takes to reach `successes`."""

    successes: int | None = None
    scored_at_temperature: float | None = None
    """The temperature of the log-probabilities that the training monitor stores beside its samples."""

    def __post_init__(self) -> None:
        if self.successes is not None and (not isinstance(self.successes, int) or self.successes < 1):
            raise ConfigError(f"a plan that stops early needs successes of at least 1, got {self.successes!r}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Plan":
        """From what `to_json` gives."""
        rest = {name: value for name, value in values.items() if name != "kind"}
        kind = "fixed" if rest.get("successes") is None else "until"
        if values.get("kind") != kind or not rest.keys() <= {"successes", "scored_at_temperature"}:
            raise ConfigError(
                f'a plan is {{"kind": "fixed"}} or {{"kind": "until", "successes": N}}; got {dict(values)}'
            )
        return cls(**rest)

    def to_json(self) -> dict[str, Any]:
        """`{"kind": "fixed"}` or `{"kind": "until", "successes": 5}`."""
        known = {"successes": self.successes, "scored_at_temperature": self.scored_at_temperature}
        kind = "fixed" if self.successes is None else "until"
        return {"kind": kind, **{name: value for name, value in known.items() if value is not None}}


def sample_seed(seed: int | str, problem_id: str, index: int) -> int:
    """The seed of one sample; that of the next index is the next number, so that one request can hold many.

    Below 2**53, for any index that a pool can have: what every engine, and JSON, can hold.
    """
    return (_digest(seed, problem_id, 0, size=8) >> 12) + index


def round_seed(seed: int, content: object) -> int:
    """The seed of a round of draws through a trainer, by what it holds. 31 bits: for `set_seed`, with a rank added."""
    return derive_seed(seed, content) % 2**31


def derive_seed(*parts: object) -> int:
    """A 32-bit seed that depends on every part."""
    return _digest(*parts, size=4)


def _digest(*parts: object, size: int) -> int:
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:size], "big")
