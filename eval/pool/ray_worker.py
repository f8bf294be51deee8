"""What a Ray worker does with a piece of work: draws its samples, verifies them and writes them, hidden, into the pool.

The driver has only to check the numbers and to rename the file: until then the samples do not count, so that a piece
that Ray runs twice, or whose worker dies, leaves nothing in the pool. A worker that does not see the pool's folder
sends the rows to the driver, and one that cannot have the task sends the completions.
"""

import os
import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from offleash.eval.engines import load_engine
from offleash.eval.engines.base import Drawn, Engine, Prompt, library_versions
from offleash.eval.engines.cluster.shared_engine import Model, SharedEngine, check_starts, worded
from offleash.eval.errors import ConfigError, EngineError
from offleash.eval.pool.batch import Batch, verified
from offleash.eval.pool.fill import failure_of, requests_of
from offleash.eval.pool.ledger import Block
from offleash.eval.pool.pool import Pool
from offleash.eval.problem import Task
from offleash.eval.registry import search_for_modules
from offleash.eval.sampling import Sampling
from offleash.eval.verify.sandbox.workers import CORES

VERIFIERS = ("offleash", "math-verify", "latex2sympy2_extended", "sympy", "reasoning-gym")
"""Libraries that can change a verdict."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all pieces of one pool share."""

    pool: Pool
    task: Task | None
    """None if the driver verifies."""
    prompts: Sequence[Prompt]
    mark: Path
    """A file in the pool's folder: a worker that sees it can write there."""
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a piece of work."""

    batch: Batch | None = None
    """Without its rows if these were written."""
    written: Path | None = None
    drawn: list[Drawn] = field(default_factory=list)
    """Completions that the driver is to verify."""
    failed: list[str] = field(default_factory=list)
    """Why requests failed, one reason for each."""
    failure: str = ""
    """What ended the engine or the verifier."""


class Worker:
    """What Ray Data builds once in each actor and then calls from several threads, a piece at a time.

    Modules of one's own are looked for in the driver's working `folder` too, which this machine may share. `cores` are
    for the processes that verify: the other workers of the machine have theirs.
    """

    def __init__(
        self,
        engine: str,
        model: Model,
        context: int,
        sampling: Sampling,
        options: dict[str, Any],
        *,
        notices: Any,
        limit: int,
        folder: str,
        cores: int,
    ) -> None:
        # A worker that is killed must take all of vLLM with it: an engine in a process of its own would live on and
        # hold the memory that the next worker needs.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ[CORES] = str(cores)
        search_for_modules(folder)

        def load() -> Engine:
            check_starts(notices.count_start(), limit)
            return load_engine(engine, model.find(), context=context, **options)

        self.name, self.engine, self.notices = engine, SharedEngine(load, sampling), notices
        self.jobs: dict[int, Job | None] = {}
        self.fetching, self.verifying = threading.Lock(), threading.Lock()

    def __call__(self, batch: pa.Table) -> pa.Table:
        done = [self._done(piece) if piece else b"" for piece in batch["piece"].to_pylist()]
        return pa.table({"number": batch["number"], "receipt": pa.array(done, pa.large_binary())})

    def _done(self, piece: bytes) -> bytes:
        """Empty if nobody waits for it."""
        number, blocks_b3 = pickle.loads(piece)
        try:
            job = self._job(number)
            receipt = Receipt() if job is None else self._receipt(job, blocks_b3)
        except Exception as error:  # whatever it is, it has to reach the user
            receipt = Receipt(failure=worded(error))
        return pickle.dumps(receipt)

    def _job(self, number: int) -> Job | None:
        with self.fetching:
            if number not in self.jobs:
                job = self.notices.job(number)
                _check_versions(job)
                self.jobs = {number: job}
            return self.jobs[number]

    def _receipt(self, job: Job, blocks_b3: np.ndarray) -> Receipt:
        drawn, failed, failure = self._draw(job, blocks_b3)
        if not drawn:
            return Receipt(failed=failed, failure=failure)
        if job.task is None:
            return Receipt(drawn=drawn, failed=failed, failure=failure)
        with self.verifying:  # not every verifier may be called by several threads at once
            batch = verified(job.pool, job.task, drawn)
        if not job.mark.exists():
            return Receipt(batch, failed=failed, failure=failure)
        assert batch.table is not None
        return Receipt(batch.without_rows(), job.pool.parts.stage(batch.table), failed=failed, failure=failure)

    def _draw(self, job: Job, blocks_b3: np.ndarray) -> tuple[list[Drawn], list[str], str]:
        """What was drawn, in the order of the blocks; reasons of requests that failed; what ended the engine."""
        blocks = [Block(*row) for row in blocks_b3.tolist()]
        drawn: list[Drawn] = []
        failed: list[str] = []
        failure = ""
        try:
            for one in self.engine.generate(requests_of(job.pool, job.prompts, blocks)):
                reason = failure_of(one, self.name)
                failed += [] if reason is None else [reason]
                drawn += [one] if reason is None else []
        except EngineError as error:
            failure = str(error)
        return sorted(drawn, key=lambda one: (one.request.problem, one.request.start)), failed, failure


def _check_versions(job: Job | None) -> None:
    if job is None or job.task is None:
        return
    here = library_versions(VERIFIERS)
    for name in VERIFIERS:
        if here.get(name) != job.versions.get(name):
            raise ConfigError(
                f"{name} {here.get(name, 'is missing')} here, {job.versions.get(name, 'missing')} on the driver: "
                "verdicts could differ. Install the same version on all machines"
            )
