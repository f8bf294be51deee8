"""What tasks with generated problems share: splits that never mix, draws without repeats, checks of the arguments."""

import hashlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from offleash.eval.errors import ConfigError

SPLITS = ("train", "validation", "probe")
_PATIENCE = 20_000  # consecutive draws without a new problem before a split counts as exhausted

Drawn = TypeVar("Drawn")


def split_of(key: str) -> str:
    """The one split a problem can ever be in, whatever the seed: a hash of what makes it this problem."""
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 10
    return {0: "probe", 1: "validation"}.get(bucket, "train")


def draw(
    split: str,
    seed: int,
    propose: Callable[[np.random.Generator], tuple[str, Drawn] | None],
    keep: Callable[[Drawn], bool] = lambda drawn: True,
) -> Iterator[Drawn]:
    """Distinct problems of a split until no new one is found.

    `propose` draws a problem and gives it with its key, or None where the draw is no problem. `keep` is asked once
    about each new problem of the split.
    """
    rng = np.random.default_rng(seed)
    seen: set[str] = set()
    misses = 0
    while misses < _PATIENCE:
        misses += 1
        proposed = propose(rng)
        if proposed is None or proposed[0] in seen or split_of(proposed[0]) != split:
            continue
        seen.add(proposed[0])
        if keep(proposed[1]):
            misses = 0
            yield proposed[1]


def check_draw(task: str, split: str, n: int, seed: int) -> None:
    """The arguments of every task with generated problems."""
    if split not in SPLITS:
        raise ConfigError(f"{task} has no split {split!r}; choose one of {', '.join(SPLITS)}")
    check_integer(task, "n", n, 1)
    check_integer(task, "seed", seed, 0)


def check_integer(task: str, name: str, value: int, low: int, high: int | None = None) -> None:
    """An argument that must be an integer of at least `low` and at most `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{task}: {name} must be an integer, got {value!r}")
    if value < low:
        raise ConfigError(f"{task}: {name} must be at least {low}, got {value}")
    if high is not None and value > high:
        raise ConfigError(f"{task}: {name} must be at most {high}, got {value}: too many to enumerate")


def take(task: str, split: str, n: int, drawn: Iterator[Drawn], limits: str) -> list[Drawn]:
    """The first `n` draws; `limits` says in the error what the arguments allow."""
    taken = [one for one, _ in zip(drawn, range(n), strict=False)]
    if len(taken) < n:
        raise ConfigError(
            f"{task}: n={n}, but only {len(taken)} problems were found in split {split!r} "
            f"with {limits}; lower n or widen them"
        )
    return taken
