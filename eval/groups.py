"""A stream of texts in groups of bounded size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def bounded_groups(items: Iterable[T], text: Callable[[T], str | None], most: int, chars: int) -> Iterator[list[T]]:
    """Groups that end at `most` items, or once the texts of their items have `chars` characters.

    >>> list(bounded_groups(["a", "bb", "c", "d"], str, most=2, chars=2))
    [['a', 'bb'], ['c', 'd']]
    """
    group: list[T] = []
    size = 0
    for item in items:
        group.append(item)
        size += len(text(item) or "")
        if len(group) >= most or size >= chars:
            yield group
            group, size = [], 0
    if group:
        yield group
