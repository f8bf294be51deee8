"""A plan that stops each problem at its r-th success, drawn in as few rounds as its problems need.

`eval.stats.stopping` has the estimators: they know where each problem stopped, in the order of its samples' indices.
When samples are drawn, and how many at once, changes neither that place nor their distribution. A round ends when its
longest completion does, which at thousands of tokens leaves most of the hardware idle, so each round draws about what
every problem will still need, judging by its rate of success so far. A stream, which can take draws back, has them all,
in the order in which they are likely to be needed. What turns out to lie behind the r-th success is thrown away: a pool
holds the stopped experiment and nothing more.
"""

from collections.abc import Iterable

import numpy as np

from offleash.callbacks.policy.sampler import Round
from offleash.callbacks.policy.stream import Stream
from offleash.eval.pool.ledger import Block, Ledger, runs
from offleash.eval.pool.rows import Sample

SPARE = 2.5
"""Times as many draws as a problem is expected to need: an idle engine costs more than a few draws too many."""


def next_ends(
    draws_p: np.ndarray,
    correct_p: np.ndarray,
    successes: int,
    k: int,
    block: int,
    expected_p: np.ndarray | None = None,
) -> np.ndarray:
    """Up to which index each problem is drawn next, a multiple of `block` or k: [p].

    By its own rate, to which one draw with the `expected_p` rate of success is added. Where that is not known, at first
    up to `successes`, then with half a success.
    """
    rate_p = (correct_p + (0.5 if expected_p is None else expected_p)) / (draws_p + 1)
    more_p = SPARE * np.maximum(successes - correct_p, 1) / rate_p
    if expected_p is None:
        more_p = np.where(draws_p > 0, more_p, successes)
    blocks_p = np.ceil((draws_p + more_p) / block).astype(np.int64)
    return np.minimum(blocks_p * block, k)


class EarlyStop:
    """What a pool under such a plan lacks, and which of the samples drawn for it are kept.

    `expected_p`: the rate of success, above 0, that each problem may be expected to have, where that is known. It
    orders a stream; a round cannot take back what a better rate makes needless, and goes by the problem's own.
    """

    def __init__(self, ledger: Ledger, problem_ids: Iterable[str], expected_p: np.ndarray | None = None) -> None:
        assert ledger.successes is not None
        self.ledger, self.successes, self.expected_p = ledger, ledger.successes, expected_p
        self._place = {name: p for p, name in enumerate(problem_ids)}
        self._waiting: dict[int, dict[int, Sample]] = {p: {} for p in self._place.values()}

    def missing(self, block: int) -> list[np.ndarray]:
        """The indices to draw next of each problem; empty for all of them once the plan is done."""
        ledger = self.ledger
        end_p = next_ends(ledger.draws_p, ledger.correct_p, self.successes, ledger.k, block)
        return [
            np.flatnonzero(~sampled_k[:end]) if not ledger.is_done(p) else np.zeros(0, dtype=np.int64)
            for p, (sampled_k, end) in enumerate(zip(ledger.sampled_pk, end_p, strict=True))
        ]

    def stream(self, processes: int, block: int, scored: int) -> Round | None:
        """All that open problems may still need, as one stream on each process, in which each problem's first `scored`
        draws are scored; None if there are fewer problems, if one has a gap between its samples, or if nothing is known
        of one's rate.

        Problems are dealt out by what they are expected to need, the largest first, to whoever has least. One that
        needs more than a process's share is drawn by all of them: each takes back what its own successes make needless.
        All of a process's problems advance together to where they are expected to end, and only then beyond it.
        """
        ledger = self.ledger
        drawn_p, correct_p = ledger.draws_p, ledger.correct_p
        still_open = [p for p in range(len(drawn_p)) if not ledger.is_done(p)]
        if self.expected_p is None and any(drawn_p[p] == 0 for p in still_open):
            return None
        if len(still_open) < processes or any(drawn_p[p] != ledger.prefix(p) for p in still_open):
            return None
        need_p = next_ends(drawn_p, correct_p, self.successes, ledger.k, 1, self.expected_p) - drawn_p
        share = need_p[still_open].sum() / processes
        shares: list[list[Block]] = [[] for _ in range(processes)]
        load = np.zeros(processes)
        for p in sorted(still_open, key=lambda p: (-need_p[p], p)):
            blocks = runs(p, ~ledger.sampled_pk[p, : ledger.budget_p[p]], block)
            by_all = need_p[p] > share
            least = int(load.argmin())
            for i, one in enumerate(blocks):
                shares[(least + i) % processes if by_all else least].append(one)
            load[slice(None) if by_all else least] += need_p[p] / (processes if by_all else 1)
        if not all(shares):
            return None

        def progress(block: Block) -> tuple[float, int]:
            return (block.start - drawn_p[block.problem]) / need_p[block.problem], block.problem

        ordered = tuple(tuple(sorted(own, key=progress)) for own in shares)
        needed = {p: self.successes - int(correct_p[p]) for p in still_open}
        return Round(tuple(one for own in ordered for one in own), scored, Stream(ordered, needed))

    def keep(self, samples: Iterable[Sample]) -> list[Sample]:
        """Those that belong to the pool by now. A sample after a gap waits: whether it does is not known yet."""
        for sample in samples:
            self._waiting[self._place[sample.problem_id]][sample.index] = sample
        return [sample for problem in self._waiting for sample in self._settled(problem)]

    def _settled(self, problem: int) -> list[Sample]:
        ledger, waiting = self.ledger, self._waiting[problem]
        if not waiting:
            return []
        run: list[Sample] = []
        if not ledger.is_done(problem):
            index = ledger.prefix(problem)
            while index in waiting:
                run.append(waiting.pop(index))
                index += 1
            run = run[: ledger.kept(problem, np.array([sample.correct for sample in run], dtype=bool))]
            numbers = np.array([sample.index for sample in run], dtype=np.int64)
            ledger.record(np.full(len(run), problem), numbers, np.array([sample.correct for sample in run], dtype=bool))
        if ledger.is_done(problem):
            waiting.clear()
        return run
