"""What is left of a plan, in blocks: consecutive indices of one problem, sampled by one request with its own seed.

A sample's seed depends on nothing but the pool's seed, the problem and the index, and a block's is that of its first
sample. A run that was killed therefore samples exactly what it lost, and a pool that grows gets the samples that it
would have had from the start, where the engine draws each sample of a request with a seed of its own.

Under a plan that stops early (`stats.stopping`), a problem is sampled in rounds: up to 32 samples, 64, 128 and so on.
Whether it is done depends on its samples in index order without a gap, never on which of them arrived first. Samples
after the last success of the plan are discarded, so that a pool holds the stopped experiment and nothing more.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.pool.pool import Pool
from offleash.eval.stats.stopping import stopped_pass_at_k

FIRST_ROUND = 32
_UNSEEN = -1


class Block(NamedTuple):
    """`size` samples of one problem (an index into the pool's problems), from index `start` on."""

    problem: int
    start: int
    size: int


def round_ends(k: int, successes: int | None) -> list[int]:
    """Up to which index each round samples a problem that is not done: k at once, or twice as far each time."""
    if successes is None:
        return [k]
    ends = []
    end = FIRST_ROUND
    while end < k:
        ends.append(end)
        end *= 2
    return [*ends, k]


class Ledger:
    """What a pool holds of its plan: for each (problem, index) whether it was sampled and was correct."""

    def __init__(self, pool: Pool) -> None:
        self.k, self.successes, self.budget_p = pool.spec.k, pool.spec.plan.successes, pool.budget_p
        self._state_pk = np.full((len(pool.problem_ids), self.k), _UNSEEN, dtype=np.int8)
        for chunk in pool.scan(["correct"]):
            self.record(chunk.problem_r, chunk.index_r, chunk.columns.column("correct").to_numpy(zero_copy_only=False))

    def record(self, problem_r: np.ndarray, index_r: np.ndarray, correct_r: np.ndarray) -> None:
        self._state_pk[problem_r, index_r] = correct_r

    @property
    def sampled_pk(self) -> NDArray[np.bool_]:
        return self._state_pk != _UNSEEN

    @property
    def draws_p(self) -> np.ndarray:
        return np.count_nonzero(self.sampled_pk, axis=1)

    @property
    def correct_p(self) -> np.ndarray:
        return np.count_nonzero(self._state_pk == 1, axis=1)

    def prefix(self, problem: int) -> int:
        """How many samples it has from index 0 on without a gap."""
        gaps = np.flatnonzero(self._state_pk[problem] == _UNSEEN)
        return int(gaps[0]) if len(gaps) else self.k

    def is_done(self, problem: int) -> bool:
        if self.prefix(problem) >= self.budget_p[problem]:
            return True
        return self.successes is not None and self._wins(problem) >= self.successes

    @property
    def is_complete(self) -> bool:
        return all(self.is_done(problem) for problem in range(len(self._state_pk)))

    def kept(self, problem: int, correct_r: np.ndarray) -> int:
        """How many of the next samples of a problem that is not done the plan keeps: up to its last success."""
        if self.successes is None:
            return len(correct_r)
        wins = np.flatnonzero(correct_r)
        wanted = self.successes - self._wins(problem)
        return int(wins[wanted - 1]) + 1 if len(wins) >= wanted else len(correct_r)

    def _wins(self, problem: int) -> int:
        """Correct samples before the first gap."""
        return int(np.count_nonzero(self._state_pk[problem, : self.prefix(problem)] == 1))

    def reach_p(self, successes: int) -> np.ndarray:
        """How many draws of each problem a plan could ask for: up to the first gap, or any number once it is done."""
        prefix_p = _first(self._state_pk == _UNSEEN)
        return np.where(_first(self._wins_pk() >= successes) < prefix_p, self.k, prefix_p)

    def stop_p(self, successes: int, cap: int) -> np.ndarray:
        """Where a plan until `successes`, at most `cap` draws, leaves each problem: how many of its draws it takes."""
        return np.minimum(_first(self._wins_pk() >= successes) + 1, cap)

    def _wins_pk(self) -> np.ndarray:
        return np.cumsum(self._state_pk == 1, axis=1, dtype=np.int32)

    def blocks(self, end: int, size: int) -> list[Block]:
        """What is missing below `end` of problems that are not done, in index order, cut at multiples of `size`."""
        return [Block(*row) for row in self.block_table(end, size).tolist()]

    def block_table(self, end: int, size: int) -> NDArray[np.int32]:
        """As `blocks`, [blocks, 3]: there may be many millions."""
        open_p = [p for p in range(len(self._state_pk)) if not self.is_done(p)]
        end_p = np.minimum(self.budget_p, end)
        none = np.zeros((0, 3), np.int32)
        found = [_run_table(p, self._state_pk[p, : end_p[p]] == _UNSEEN, size) for p in open_p]
        table_b3 = np.concatenate([none, *found])
        return table_b3[np.lexsort((table_b3[:, 0], table_b3[:, 1]))]

    def pass_at_1(self, end: int) -> float:
        """Mean over problems, unbiased: of those sampled so far, or of the stopped experiment capped at `end`."""
        state_pk = self._state_pk[:, :end]  # a pool that grows has problems that were sampled further before
        draws_p, correct_p = np.count_nonzero(state_pk != _UNSEEN, axis=1), np.count_nonzero(state_pk == 1, axis=1)
        if self.successes is not None:
            if np.any((correct_p < self.successes) & (draws_p < end)):
                return float("nan")  # in the middle of a round it is unknown who stops
            return float(stopped_pass_at_k(draws_p, correct_p, [1], successes=self.successes, cap=end).mean())
        drawn = draws_p > 0
        return float((correct_p[drawn] / draws_p[drawn]).mean()) if drawn.any() else float("nan")


def runs(problem: int, missing_k: np.ndarray, size: int) -> list[Block]:
    """Consecutive missing indices, cut at multiples of `size`."""
    return [Block(*row) for row in _run_table(problem, missing_k, size).tolist()]


def _run_table(problem: int, missing_k: np.ndarray, size: int) -> NDArray[np.int32]:
    indices = np.flatnonzero(missing_k)
    starts = np.ones(len(indices), dtype=bool)
    starts[1:] = (np.diff(indices) != 1) | (indices[1:] % size == 0)
    first = np.flatnonzero(starts)
    counts = np.diff(first, append=len(indices))
    return np.stack([np.full(len(first), problem), indices[first], counts], axis=1).astype(np.int32)


def _first(flag_pk: np.ndarray) -> np.ndarray:
    """The place of the first True of each row; the length of a row that has none."""
    return np.where(flag_pk.any(axis=1), flag_pk.argmax(axis=1), flag_pk.shape[1])
