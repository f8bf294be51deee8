"""From completions to rows of a pool: verified samples, and what is checked and counted of them, whoever drew them.

A `Batch` is verified where it was drawn, here or in a worker of a cluster. Its numbers are small and travel; its rows,
with their texts, need not. The `Books` are kept in one place: nothing enters a pool before they have checked it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np
import pyarrow as pa

from offleash.eval.engines.base import Drawn
from offleash.eval.pool.ledger import Block, Ledger
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.repeats import Repeats, digest
from offleash.eval.pool.rows import rows_table
from offleash.eval.problem import Task
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import verdicts_of


@dataclass(slots=True)
class Totals:
    """What one call sampled and kept. `verdicts` has the share of every status."""

    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    pass_at_1: float = float("nan")
    verdicts: Failures = field(default_factory=Failures)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples of whole blocks, in the order of `blocks`; the arrays have an entry per sample."""

    blocks: tuple[Block, ...]
    correct_r: np.ndarray
    status_r: np.ndarray
    tokens_r: np.ndarray
    """0 where unknown."""
    logprob_r: np.ndarray
    """NaN where unknown."""
    digest_r: np.ndarray
    message: str
    """What the verifier said when it last failed."""
    table: pa.Table | None
    """The rows; None if they are elsewhere."""

    @property
    def problem_r(self) -> np.ndarray:
        return np.repeat([block.problem for block in self.blocks], [block.size for block in self.blocks])

    @property
    def index_r(self) -> np.ndarray:
        return np.concatenate([np.arange(block.start, block.start + block.size) for block in self.blocks])

    def rows(self, kept_r: np.ndarray) -> pa.Table:
        """Those of some samples."""
        assert self.table is not None
        return self.table.filter(kept_r)

    def part(self, taken_b: Sequence[bool]) -> "Batch":
        """Some of its blocks."""
        rows_r = np.repeat(taken_b, [block.size for block in self.blocks])
        return Batch(
            tuple(compress(self.blocks, taken_b)),
            self.correct_r[rows_r],
            self.status_r[rows_r],
            self.tokens_r[rows_r],
            self.logprob_r[rows_r],
            self.digest_r[rows_r],
            self.message,
            self.rows(rows_r),
        )

    def without_rows(self) -> "Batch":
        return replace(self, table=None)


def verified(pool: Pool, task: Task, drawn: Sequence[Drawn]) -> Batch:
    """Completions with their verdicts, as rows of the pool."""
    blocks = tuple(Block(request.problem, request.start, request.n) for request, _ in drawn)
    made = [completion for _, completions in drawn for completion in completions]
    truncated = [completion.finish == "length" for completion in made]
    texts = [completion.text for completion in made]
    places = [block.problem for block in blocks for _ in range(block.size)]
    problems = pool.problems
    verdicts = verdicts_of(task.verify, [problems[place] for place in places], texts, truncated)
    ids = pool.problem_ids
    columns = {
        "problem_id": [ids[place] for place in places],
        "index": [block.start + i for block in blocks for i in range(block.size)],
        "answer": [verdict.answer for verdict in verdicts],
        "spelling": [verdict.spelling for verdict in verdicts],
        "correct": [verdict.correct for verdict in verdicts],
        "status": [verdict.status for verdict in verdicts],
        "extracted_by": [verdict.extracted_by for verdict in verdicts],
        "tokens": [completion.tokens for completion in made],
        "logprob": [completion.logprob for completion in made],
        "completion": texts,
        "truncated": truncated,
    }
    return Batch(
        blocks,
        np.array(columns["correct"], dtype=bool),
        np.array(columns["status"], dtype="U9"),
        np.array([completion.tokens or 0 for completion in made], dtype=np.int64),
        np.array(columns["logprob"], dtype=np.float64),
        np.array([digest(completion.text, completion.tokens) for completion in made], dtype=np.uint64),
        next((one.message for one in reversed(verdicts) if one.failed and one.message), ""),
        rows_table(columns),
    )


class Books:
    """The ledger of a pool, the test for repeats and the count of verdicts: one for each call that samples."""

    def __init__(self, pool: Pool, block: int, failures: Failures) -> None:
        self.pool, self.ledger, self.failures = pool, Ledger(pool), failures
        self.repeats, self.totals = Repeats(pool, block), Totals(verdicts=failures)
        self.repeats.remember(self.ledger.sampled_pk)

    def check(self, batch: Batch) -> None:
        """Raises VerifyError if the verifier fails too often, EngineError if completions repeat beyond chance."""
        self.failures.add_statuses(batch.problem_r.tolist(), batch.status_r.tolist(), batch.message)
        self.failures.check()
        end = 0
        for block in batch.blocks:
            rows = slice(end, end + block.size)
            end = rows.stop
            if self.ledger.successes is None or not self.ledger.is_done(block.problem):
                self.repeats.add(block.problem, block.start, batch.digest_r[rows], batch.logprob_r[rows])
        self.repeats.check()

    def kept_r(self, batch: Batch) -> np.ndarray:
        """Which samples the plan keeps: those of a problem up to the success at which it stops."""
        kept_r = np.ones(len(batch.correct_r), dtype=bool)
        if self.ledger.successes is None:
            return kept_r
        problem_r = batch.problem_r
        for problem in np.unique(problem_r).tolist():
            rows = np.flatnonzero(problem_r == problem)
            count = 0 if self.ledger.is_done(problem) else self.ledger.kept(problem, batch.correct_r[rows])
            kept_r[rows[count:]] = False
        return kept_r

    def count(self, batch: Batch, kept_r: np.ndarray) -> None:
        """Record what the pool now has."""
        self.ledger.record(batch.problem_r[kept_r], batch.index_r[kept_r], batch.correct_r[kept_r])
        self.totals.samples += int(np.count_nonzero(kept_r))
        self.totals.tokens += int(batch.tokens_r[kept_r].sum())

    def in_order(self, spans: Sequence[tuple[Block, ...]]) -> list[int]:
        """Which of the waiting batches, given by their blocks, can be counted now, in an order in which they can.

        Under a plan that stops early, samples after a gap wait, because nobody knows yet whether they are asked for.
        """
        if self.ledger.successes is None:
            return list(range(len(spans)))
        ready: list[int] = []
        reached: dict[int, int] = {}
        for place in sorted(range(len(spans)), key=lambda place: spans[place][0]):
            after = dict(reached)
            if all(self._follows(block, after) for block in spans[place]):
                reached = after
                ready.append(place)
        return ready

    def before_gaps(self, blocks: Sequence[Block]) -> list[bool]:
        """Which blocks of a batch can be counted now, if nothing that comes before the others will ever arrive."""
        reached: dict[int, int] = {}
        return [self.ledger.successes is None or self._follows(block, reached) for block in blocks]

    def _follows(self, block: Block, reached: dict[int, int]) -> bool:
        """Whether no sample before a block is missing, or none is asked for. `reached`, how far each problem comes, is
        moved on."""
        at = reached.setdefault(block.problem, self.ledger.prefix(block.problem))
        if block.start != at:
            return self.ledger.is_done(block.problem)
        reached[block.problem] = block.start + block.size
        return True
