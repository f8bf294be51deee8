"""Filling a pool on a Ray cluster, through Ray Data: workers draw, verify and write, this process keeps the books.

Work goes out in pieces of many requests, and receipts come back in any order: which samples were drawn, which are
correct, and the name of the file that holds them. A receipt that passes the checks of `batch.Books` makes that file a
part of the pool by renaming it. Nobody else does, so that nothing can be in the pool twice.

A worker that dies is replaced and its unfinished pieces are drawn again, with the same seeds. If this process dies, or
the whole cluster, the pool has every part that was renamed, and the same command draws the rest.
"""

import math
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from offleash.eval.code_fingerprint import is_installed
from offleash.eval.console import say
from offleash.eval.engines import find_engine
from offleash.eval.engines.base import Prompt, library_versions
from offleash.eval.engines.cluster.connection import capacity_of, connect, import_ray, reason_of, resources_of
from offleash.eval.engines.cluster.shared_engine import Model
from offleash.eval.engines.model import ModelSource
from offleash.eval.errors import EngineError, first_line
from offleash.eval.files import hidden_mark
from offleash.eval.pool.batch import Batch, Books, Totals, verified
from offleash.eval.pool.fill import PART_SAMPLES, PATIENCE, out_of_patience, requests_failed, sampling_bar, show
from offleash.eval.pool.ledger import Block, round_ends
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.ray_worker import VERIFIERS, Job, Receipt, Worker
from offleash.eval.problem import Task
from offleash.eval.sampling import Sampling
from offleash.eval.verify.health import Failures

GO_ON = "Completed samples are kept, and the same command continues"
DEATHS = 4
"""How many workers, beyond all of them once, may die without a single answer: Ray itself would retry forever."""
CALLS = 64
"""Pieces that a worker may have at once."""
PIECE_TOKENS = 1 << 20
"""At most so many new tokens are asked for in a piece, unless the engine runs more at once: about a minute's work."""
MOST_PIECES = 1 << 16
"""In a round, and so parts, however long completions are: every reader opens all parts."""
PIECES_EACH = 8
"""Pieces per worker, at least, so that all of them end at about the same time."""

SHOW_EVERY = 10.0


class Piece(NamedTuple):
    """Some blocks of a pool: rows of (problem, start, size)."""

    blocks_b3: np.ndarray

    @property
    def samples(self) -> int:
        return int(self.blocks_b3[:, 2].sum())


class RayWorkers:
    """Engines of that name in `workers` actors: by default one per GPU, without GPUs one per machine.

    `address` is a cluster's, or "" for what Ray finds by itself: RAY_ADDRESS, a cluster running here, or a new
    one on this machine alone. `options` are the engine's own. One set of workers serves any number of pools.
    """

    def __init__(
        self,
        engine: str,
        source: ModelSource,
        *,
        context: int,
        address: str = "",
        workers: int | None = None,
        **options: Any,
    ) -> None:
        self.name, self.block = engine, int(find_engine(engine).block)  # type: ignore[attr-defined]
        self.ray = import_ray()
        self.is_ours = connect(self.ray, address)
        self.resources = resources_of(self.ray, workers, options)
        self.count: int = self.resources.pop("workers")
        self.at_once, self.queued = capacity_of(engine, options)
        self.arguments = (engine, Model.of(source), context)
        self.options = options
        self.sampling: Sampling | None = None
        self._job = 0

    def start(self, job: Job, sampling: Sampling) -> None:
        """Have the workers that sample so take on a job, the only one from now on."""
        if sampling != self.sampling:
            self._start(sampling)
        self._job += 1
        self.feed.publish(self._job, self._packed(job))

    def work(self, pieces: Iterator[Piece], room: int) -> Iterator[tuple[Piece, Receipt]]:
        """Each piece with its receipt, in any order. At most `room` samples are under way for each worker."""
        under_way, done, samples = dict[int, Piece](), list[int](), 0
        while True:
            new: list[Piece] = []
            while samples < room * self.count and (piece := next(pieces, None)) is not None:
                new.append(piece)
                samples += piece.samples
            sent = [pickle.dumps((self._job, piece.blocks_b3)) for piece in new]
            under_way |= dict(zip(self.feed.add(sent, done), new, strict=True))
            if not under_way:
                return
            done = []
            for number, receipt in self._next_receipts():
                if number in under_way:  # else of an earlier call that was not read to its end
                    piece = under_way.pop(number)
                    samples -= piece.samples
                    yield piece, pickle.loads(receipt)
                done.append(number)

    def _packed(self, job: Job) -> bytes:
        """Without the task if it cannot be pickled, because it holds a connection, say."""
        dumps = self.ray.cloudpickle.dumps
        with _own_modules_by_value(self.ray):
            try:
                return bytes(dumps(job))
            except (TypeError, AttributeError, ValueError, RecursionError, pickle.PicklingError) as error:
                name = "the task" if job.task is None else job.task.name
                say(f"offleash: {name} cannot be sent to workers ({first_line(error, 100)}): this process verifies")
                return bytes(dumps(replace(job, task=None)))

    def close(self) -> None:
        self._stop()
        if self.is_ours:
            self.ray.shutdown()

    def _stop(self) -> None:
        """Without this Ray Data goes on in a thread, and would start another Ray after the end of this one."""
        if self.sampling is not None:
            self.stream.close()

    def _start(self, sampling: Sampling) -> None:
        from ray.data import ActorPoolStrategy

        from offleash.eval.engines.cluster.feed import Feed

        self._stop()
        self.feed = Feed()
        receipts = self.feed.dataset.map_batches(
            Worker,
            batch_size=1,  # a piece; with GPUs Ray wants a number
            batch_format="pyarrow",
            fn_constructor_args=(*self.arguments, sampling, self.options),
            fn_constructor_kwargs={
                "notices": self.feed.notices,
                "limit": 2 * self.count + DEATHS,
                "folder": str(Path.cwd()),
                "cores": self.resources["num_cpus"],
            },
            compute=ActorPoolStrategy(
                size=self.count,
                max_tasks_in_flight_per_actor=CALLS,
                max_concurrent_calls_per_actor=CALLS,
                enable_true_multi_threading=True,
            ),
            **self.resources,
        )
        self.stream: Any = iter(receipts.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
        self.sampling = sampling

    def _next_receipts(self) -> list[tuple[int, bytes]]:
        from ray.data.exceptions import SystemException

        try:
            table = next(self.stream)
        except StopIteration:
            raise EngineError(f"Ray ended the stream of receipts. {GO_ON}") from None
        except (self.ray.exceptions.RayError, SystemException) as error:
            raise EngineError(f"Ray gave up: {reason_of(error)}. {GO_ON}") from error
        return list(zip(table["number"].to_pylist(), table["receipt"].to_pylist(), strict=True))


class RayFill:
    """Samples what a pool lacks of its plan. `prompts` are those of the pool's problems, in order."""

    def __init__(
        self,
        pool: Pool,
        task: Task,
        workers: RayWorkers,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        failures: Failures,
    ) -> None:
        self.pool, self.task, self.workers, self.prompts, self.sampling = pool, task, workers, prompts, sampling
        self.books = Books(pool, workers.block, failures)
        self.waiting: list[Receipt] = []
        self.failed: list[str] = []
        self._failed_in_a_row = 0
        self._started = time.monotonic()

    def run(self, *, progress: bool = True) -> Totals:
        """Raises what `Fill.run` does."""
        k, books = self.pool.spec.k, self.books
        with hidden_mark(self.pool.path.absolute()) as mark:
            self.workers.start(self._job(mark), self.sampling)
            for end in round_ends(k, books.ledger.successes):
                self._round(end, progress)
        if not books.ledger.is_complete:
            raise EngineError(f"{self.pool.path} is incomplete, though nothing failed. {GO_ON}")
        books.totals.seconds = time.monotonic() - self._started
        books.totals.pass_at_1 = books.ledger.pass_at_1(k)
        return books.totals

    def _job(self, mark: Path) -> Job:
        shown = Pool(self.pool.path.absolute(), self.pool.manifest, self.pool.spec, self.pool.problem_ids)
        shown.share_problems(self.pool)
        assert shown.problems  # read here, for the workers
        return Job(shown, self.task, self.prompts, mark, library_versions(VERIFIERS))

    def _round(self, end: int, progress: bool) -> None:
        """What is missing after a first pass is drawn once more: under a plan that stops early it holds up the rest."""
        asked = 0
        for _ in range(2):
            self.failed = []
            blocks_b3 = self.books.ledger.block_table(end, self.workers.block)
            if len(blocks_b3):
                asked = asked or len(blocks_b3)
                self._draw(end, blocks_b3, progress)
        if self.failed:
            raise requests_failed(self.failed, asked, self.books.ledger.successes is not None)

    def _draw(self, end: int, blocks_b3: np.ndarray, progress: bool) -> None:
        self.waiting, self._failed_in_a_row = [], 0
        samples = piece_samples(
            int(blocks_b3[:, 2].sum()), self.workers.count, self.workers.at_once, self.sampling.max_new_tokens
        )
        if self.books.ledger.successes is not None:  # so that few receipts wait for another
            blocks_b3 = blocks_b3[np.lexsort((blocks_b3[:, 1], blocks_b3[:, 0]))]
        pieces = iter(pieces_of(blocks_b3, samples))
        room = max(self.workers.queued, 2 * samples) + samples
        try:
            with sampling_bar(self.books, end, int(blocks_b3[:, 2].sum()), progress) as bar:
                shown = time.monotonic()
                for piece, receipt in self.workers.work(pieces, room):
                    bar.update(piece.samples)
                    self._take(receipt)
                    if time.monotonic() - shown >= SHOW_EVERY:  # pass@1 of a large pool takes a while to count
                        show(bar, self.books, end, self._started, len(self.failed))
                        shown = time.monotonic()
            self._save_before_gaps()
        finally:
            for receipt in self.waiting:
                _discard(receipt)

    def _take(self, receipt: Receipt) -> None:
        """What was drawn is kept first, whatever went wrong after it."""
        self.failed += receipt.failed
        if receipt.batch is not None or receipt.drawn:
            self._failed_in_a_row = 0
            self.waiting.append(receipt)
            self._save()
        else:
            self._failed_in_a_row += len(receipt.failed)
        if receipt.failure:
            raise EngineError(f"{receipt.failure}. {GO_ON}")
        if self._failed_in_a_row >= PATIENCE:
            raise out_of_patience(self.failed[-1])

    def _save(self) -> None:
        """Keep what is waiting; under a plan that stops early, samples after a gap go on waiting."""
        while ready := self.books.in_order([_blocks(receipt) for receipt in self.waiting]):
            taken = [self.waiting[place] for place in ready]
            self.waiting = [receipt for place, receipt in enumerate(self.waiting) if place not in set(ready)]
            for receipt in taken:
                self._keep(receipt)

    def _save_before_gaps(self) -> None:
        """Of what waited in vain, because a request before it failed, keep what does not come after it."""
        for receipt in sorted(self.waiting, key=_blocks):
            taken_b = self.books.before_gaps(_blocks(receipt))
            if any(taken_b):
                self._keep(Receipt(self._with_rows(receipt).part(taken_b)))

    def _with_rows(self, receipt: Receipt) -> Batch:
        if receipt.batch is None:
            return verified(self.pool, self.task, receipt.drawn)
        if receipt.written is None:
            return receipt.batch
        return replace(receipt.batch, table=self.pool.parts.staged(receipt.written))

    def _keep(self, receipt: Receipt) -> None:
        batch = receipt.batch or verified(self.pool, self.task, receipt.drawn)
        try:
            self.books.check(batch)
            kept_r = self.books.kept_r(batch)
            self._write(batch, receipt.written, kept_r)
        finally:
            _discard(receipt)
        self.books.count(batch, kept_r)

    def _write(self, batch: Batch, written: Path | None, kept_r: np.ndarray) -> None:
        if written is None:
            self.pool.append(batch.rows(kept_r))
        elif kept_r.all():
            self.pool.adopt(written)
        elif kept_r.any():
            self.pool.append(self.pool.parts.staged(written).filter(kept_r))


def piece_samples(missing: int, workers: int, at_once: int, max_new_tokens: int) -> int:
    """Samples in a piece: parts large enough to be few, small enough to lose little and to share the work evenly."""
    most = max(at_once, min(PART_SAMPLES, PIECE_TOKENS // max_new_tokens), math.ceil(missing / MOST_PIECES))
    return max(1, min(most, math.ceil(missing / (PIECES_EACH * workers))))


def pieces_of(blocks_b3: np.ndarray, samples: int) -> Iterator[Piece]:
    """Consecutive blocks of about so many samples together, of one problem without a gap in between.

    What lies in the gap is in the pool, or comes with another piece: with the gap in it a piece could wait for itself.
    """
    group_b = (np.cumsum(blocks_b3[:, 2], dtype=np.int64) - 1) // samples
    problem_b, start_b, size_b = blocks_b3.T
    gap_b = (np.diff(problem_b) == 0) & (start_b[1:] != start_b[:-1] + size_b[:-1])
    ends = [*(np.flatnonzero((np.diff(group_b) > 0) | gap_b) + 1).tolist(), len(blocks_b3)]
    start = 0
    for end in ends:
        yield Piece(blocks_b3[start:end])
        start = end


def _blocks(receipt: Receipt) -> tuple[Block, ...]:
    if receipt.batch is not None:
        return receipt.batch.blocks
    return tuple(Block(request.problem, request.start, request.n) for request, _ in receipt.drawn)


def _discard(receipt: Receipt) -> None:
    if receipt.written is not None:
        receipt.written.unlink(missing_ok=True)


@contextmanager
def _own_modules_by_value(ray: Any) -> Iterator[None]:
    """What the user's own modules define travels as code: another machine may have another version of their files."""
    files = {name: module for name, module in list(sys.modules.items()) if getattr(module, "__file__", None)}
    named = {name: module for name, module in files.items() if getattr(module, "__name__", "") == name != "__main__"}
    own = [module for name, module in named.items() if isinstance(module, ModuleType) and not is_installed(name)]
    for module in own:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            ray.cloudpickle.unregister_pickle_by_value(module)
