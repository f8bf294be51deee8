"""A stream: draws of a plan that stops early, in one queue from which an engine takes back what is no longer needed."""

from bisect import insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from offleash.eval.pool.ledger import Block

JUDGED_OF = 64
"""Completions of a stream are judged once they are one in so many of those that run: one by one at its end."""
JUDGING_PART = 0.1
"""Of a stream's time, at the most, goes into judging, while its engine waits; a slow verifier gets more at once."""


class Stream(NamedTuple):
    """How a round is drawn in one stream by each process for itself: its blocks, those of its own problems, and how
    many more successes each problem needs. Draws behind the last one needed are taken back."""

    shares: tuple[tuple[Block, ...], ...]
    needed: Mapping[int, int]


def is_due(waiting: int, running: int, spent: float, elapsed: float) -> bool:
    """Whether a stream judges now what waits for it; `spent` of the `elapsed` seconds went into judging so far."""
    return waiting * JUDGED_OF >= running and spent <= JUDGING_PART * elapsed


class Wanted:
    """Which draws of a stream are still wanted; a draw is known by its place among the slots.

    A problem ends at the last success that it needs, in the order of indices. Once so many of its draws have succeeded,
    it ends at the last of these or before: what has a higher index cannot matter. Lower ones can, and go on.
    """

    def __init__(self, slots: Sequence[tuple[int, int]], needed: Mapping[int, int]) -> None:
        self.slots, self.needed = slots, needed
        self.ended, self.dropped = set[int](), set[int]()
        self._won: defaultdict[int, list[int]] = defaultdict(list)
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        for place, (problem, _) in enumerate(slots):
            self._places[problem].append(place)

    @property
    def running(self) -> int:
        return len(self.slots) - len(self.ended) - len(self.dropped)

    def end(self, places: Sequence[int]) -> None:
        self.ended.update(places)

    def take_back(self, correct: Sequence[int]) -> set[int]:
        """Which draws to take back, now that those at these places are known to be correct."""
        for place in correct:
            problem, index = self.slots[place]
            insort(self._won[problem], index)
        found = {place for problem in {self.slots[place][0] for place in correct} for place in self._behind(problem)}
        found -= self.ended | self.dropped
        self.dropped |= found
        return found

    def take_back_all(self) -> set[int]:
        """All that still run."""
        found = set(range(len(self.slots))) - self.ended - self.dropped
        self.dropped |= found
        return found

    def _behind(self, problem: int) -> list[int]:
        needed, won = self.needed[problem], self._won[problem]
        if len(won) < needed:
            return []
        return [place for place in self._places[problem] if self.slots[place][1] > won[needed - 1]]
