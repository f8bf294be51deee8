"""The loop that fills a pool: an engine samples what the plan lacks, the task verifies it, parts are appended.

Parts are written every few seconds, whether or not something arrived, so a crash, Ctrl-C or kill -9 loses at most those
seconds, and the same call resumes. Only verified samples are kept, and only those that the plan asks for.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from tqdm.auto import tqdm

from offleash.eval.console import visible
from offleash.eval.engines.base import Drawn, Engine, Prompt, Request
from offleash.eval.errors import EngineError
from offleash.eval.pool.batch import Batch, Books, Totals, verified
from offleash.eval.pool.ledger import Block, round_ends
from offleash.eval.pool.pool import Pool
from offleash.eval.problem import Task
from offleash.eval.sampling import Sampling, sample_seed
from offleash.eval.verify.health import Failures

PART_SAMPLES = 16_384
VERIFY_AHEAD = 512
"""Samples are verified in groups of this size, as they come: an engine in a process of its own goes on meanwhile."""
PATIENCE = 16
"""Requests that may fail in a row before the run stops."""


@dataclass
class Fill:
    """Samples what a pool lacks of its plan. `prompts` are those of the pool's problems, in order."""

    pool: Pool
    task: Task
    engine: Engine
    prompts: Sequence[Prompt]
    sampling: Sampling
    save_every: float = 10.0
    """Seconds between parts."""
    failures: Failures = field(default_factory=Failures)
    """Sets the limit of verifier failures."""

    def __post_init__(self) -> None:
        self.books = Books(self.pool, self.engine.block, self.failures)
        self.ledger, self.totals = self.books.ledger, self.books.totals
        self.pending: list[Drawn] = []
        self.judged: list[Batch] = []
        self.failed: dict[Block, str] = {}
        self._failed_in_a_row = 0
        self._end = self.pool.spec.k
        self._started = self._saved = time.monotonic()

    def run(self, *, progress: bool = True) -> Totals:
        """Raises EngineError if a request failed (the others are kept, and another run samples the rest), VerifyError
        if the verifier fails too often, PoolError on a disk error."""
        for end in round_ends(self.pool.spec.k, self.ledger.successes):
            self._end = end
            blocks = self.ledger.blocks(end, self.engine.block)
            if blocks:
                self._round(blocks, progress)
        self.totals.seconds = time.monotonic() - self._started
        self.totals.pass_at_1 = self.ledger.pass_at_1(self.pool.spec.k)
        return self.totals

    def _round(self, blocks: Sequence[Block], progress: bool) -> None:
        self.pending, self.judged = [], []
        self._pending = self._unsaved = 0
        with sampling_bar(self.books, self._end, sum(block.size for block in blocks), progress) as bar:
            self._draw(blocks, bar)
            if self.failed:
                self._draw(list(self.failed), bar)  # once more: of a plan that stops early they hold up what follows
        if self.failed:
            raise requests_failed(list(self.failed.values()), len(blocks), self.ledger.successes is not None)

    def _draw(self, blocks: Sequence[Block], bar: Any) -> None:
        self.failed, self._failed_in_a_row = {}, 0
        stream = iter(self.engine.generate(requests_of(self.pool, self.prompts, blocks), self.sampling))
        while self._take_next(stream, bar):
            if self._is_time_to_save():
                self._save(bar)
        self._save(bar)

    def _take_next(self, stream: Iterator[Drawn | None], bar: Any) -> bool:
        """False at the end. If the engine fails or the user interrupts, what was sampled before is saved."""
        try:
            drawn = next(stream)
            if drawn is not None and self._take(drawn):
                bar.update(drawn.request.n)
        except StopIteration:
            return False
        except (KeyboardInterrupt, EngineError):
            self._save(bar)
            raise
        return True

    def _take(self, drawn: Drawn) -> bool:
        """False if the request failed."""
        reason = failure_of(drawn, self.engine.name)
        if reason is None:
            self._failed_in_a_row = 0
            self.pending.append(drawn)
            self._pending += drawn.request.n
            self._unsaved += drawn.request.n
            if self._pending >= VERIFY_AHEAD and self.ledger.successes is None:
                self._verify(self.pending)
            return True
        self.failed[_block(drawn)] = reason
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= PATIENCE:
            raise out_of_patience(reason)
        return False

    def _is_time_to_save(self) -> bool:
        return self._unsaved >= PART_SAMPLES or time.monotonic() - self._saved >= self.save_every

    def _save(self, bar: Any) -> None:
        """Verify and append what is pending; under a plan that stops early, samples after a gap wait."""
        while (ready := self._ready()) or self.judged:
            if ready:
                self._verify(ready)
            self._write()
        self._unsaved = self._pending
        self._saved = time.monotonic()
        show(bar, self.books, self._end, self._started, len(self.failed))

    def _verify(self, ready: Sequence[Drawn]) -> None:
        self.judged.append(verified(self.pool, self.task, ready))
        done = {id(drawn) for drawn in ready}
        self.pending = [drawn for drawn in self.pending if id(drawn) not in done]
        self._pending = sum(request.n for request, _ in self.pending)

    def _write(self) -> None:
        """Append everything verified so far as one part, unless a check raises."""
        batches, self.judged = self.judged, []
        for batch in batches:
            self.books.check(batch)
        kept = [(batch, self.books.kept_r(batch)) for batch in batches]
        self.pool.append(pa.concat_tables(batch.rows(kept_r) for batch, kept_r in kept))
        for batch, kept_r in kept:
            self.books.count(batch, kept_r)

    def _ready(self) -> list[Drawn]:
        if self.ledger.successes is not None:  # a problem may have stopped in an earlier part
            self.pending = [drawn for drawn in self.pending if not self.ledger.is_done(drawn.request.problem)]
        blocks = [(_block(drawn),) for drawn in self.pending]
        return [self.pending[place] for place in self.books.in_order(blocks)]


def requests_of(pool: Pool, prompts: Sequence[Prompt], blocks: Iterable[Block]) -> Iterator[Request]:
    """With the seeds that belong to the pool's samples."""
    ids = pool.problem_ids
    for problem, start, size in blocks:
        yield Request(problem, prompts[problem], start, size, sample_seed(pool.spec.seed, ids[problem], start))


def _block(drawn: Drawn) -> Block:
    return Block(drawn.request.problem, drawn.request.start, drawn.request.n)


def failure_of(drawn: Drawn, engine: str) -> str | None:
    """Why a request failed. Raises EngineError if the engine breaks the protocol."""
    request, completions = drawn
    if len(completions) != request.n:
        raise EngineError(f"engine {engine!r} returned {len(completions)} completions for a request of {request.n}")
    return next((completion.text for completion in completions if completion.finish == "error"), None)


def requests_failed(reasons: Sequence[str], of: int, stops_early: bool) -> EngineError:
    kept = "of each problem what comes before is kept" if stops_early else "the others are kept"
    return EngineError(
        f"{len(reasons)} of {of} requests failed ({reasons[-1]}); {kept}. The same command samples what is missing"
    )


def out_of_patience(reason: str) -> EngineError:
    return EngineError(f"{PATIENCE} requests failed in a row ({reason}); what was sampled before is kept")


# What the user sees


def sampling_bar(books: Books, end: int, size: int, progress: bool) -> Any:
    """A progress bar over `size` samples to come, of a round that samples each problem up to `end`."""
    fixed, task = books.ledger.successes is None, books.pool.spec.task
    before = int(books.ledger.draws_p.sum()) if fixed else 0
    return tqdm(
        desc=visible(task if fixed else f"{task} to {end} samples"),
        total=before + size,
        initial=before,
        unit=" samples",
        disable=not progress,
        mininterval=0.1 if sys.stderr.isatty() else 10.0,
    )


def show(bar: Any, books: Books, end: int, started: float, failed: int) -> None:
    """Numbers behind the bar."""
    seconds = max(time.monotonic() - started, 1e-9)
    parts = [f"{books.totals.tokens / seconds:,.0f} tokens/s"]
    pass_at_1 = books.ledger.pass_at_1(end)
    if pass_at_1 == pass_at_1:
        parts.insert(0, f"pass@1 {pass_at_1:.3f}")
    if books.failures.failed:
        parts.append(f"{books.failures.failed} verifier failures")
    if failed:
        parts.append(f"{failed} requests failed")
    bar.set_postfix_str(", ".join(parts), refresh=False)
