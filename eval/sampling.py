"""How a completion is drawn: every field that shapes the distribution of a sample, none left to a default."""

import hashlib
import math
from dataclasses import dataclass

from offleash.eval.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """A knob that is off has one spelling: `top_p=1.0`, `top_k=0`, `min_p=0.0`, `repetition_penalty=1.0`, `stop=()`.

    `stop` holds texts that end a completion and are cut from it; a model's own end tokens are not among them.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_new_tokens: int
    stop: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError(
                f"temperature must be above 0 and finite, got {self.temperature}: at 0 every draw of a "
                "problem is the same"
            )
        ranges = {
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1 (1: off)"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "min_p": (0 <= self.min_p < 1, "at least 0 (off) and below 1"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0 (1: off)"),
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
        }
        for name, (good, wanted) in ranges.items():
            if not good:
                raise ConfigError(f"{name} must be {wanted}, got {getattr(self, name)}")
        if "" in self.stop:
            raise ConfigError("an empty stop text would end every completion at once: leave it out")

    @property
    def untruncated(self) -> bool:
        """True if samples follow the model's own distribution at this temperature, nothing cut or penalised."""
        return self.top_p == 1 and self.top_k == 0 and self.min_p == 0 and self.repetition_penalty == 1


def block_seed(seed: int | str, problem_id: str, start: int) -> int:
    """52 bits: what every engine, and JSON, can hold."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem_id}/{start}".encode()).digest()[:8], "big") >> 12
