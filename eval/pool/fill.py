"""The loop that fills a pool: an engine samples what the plan lacks, the task verifies it, parts are appended.

Parts are written every few seconds, whether or not something arrived, so a crash, Ctrl-C or kill -9 loses at most those
seconds, and the same call resumes. Only verified samples are kept, and only those that the plan asks for.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from offleash.eval.console import visible
from offleash.eval.engines.base import Completion, Drawn, Engine, Prompt, Request
from offleash.eval.errors import EngineError
from offleash.eval.pool.ledger import Block, Ledger, round_ends
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.repeats import Repeats
from offleash.eval.pool.rows import Sample
from offleash.eval.problem import Task, Verdict
from offleash.eval.sampling import Sampling, sample_seed
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import verdicts_of

PART_SAMPLES = 16_384
PATIENCE = 16
"""Requests that may fail in a row before the run stops."""


@dataclass(slots=True)
class Totals:
    """What one call sampled and kept. `verdicts` has the share of every status."""

    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    pass_at_1: float = float("nan")
    verdicts: Failures = field(default_factory=Failures)


@dataclass(frozen=True, slots=True)
class _Row:
    problem: int
    index: int
    completion: Completion
    verdict: Verdict


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
        self.ledger, self.repeats = Ledger(self.pool), Repeats(self.pool, self.engine.block)
        self.totals = Totals(verdicts=self.failures)
        self.pending: list[Drawn] = []
        self.failed: list[str] = []
        self._failed_in_a_row = 0
        self._end = self.pool.spec.k
        self._started = self._saved = time.monotonic()

    def run(self, *, progress: bool = True) -> Totals:
        """Raises EngineError if a request failed (the others are kept, and another run samples the rest), VerifyError
        if the verifier fails too often, PoolError on a disk error."""
        self.repeats.remember(self.ledger.sampled_pk)
        for end in round_ends(self.pool.spec.k, self.ledger.successes):
            self._end = end
            blocks = self.ledger.blocks(end, self.engine.block)
            if blocks:
                self._round(blocks, progress)
        self.totals.seconds = time.monotonic() - self._started
        self.totals.pass_at_1 = self.ledger.pass_at_1(self.pool.spec.k)
        return self.totals

    def _round(self, blocks: Sequence[Block], progress: bool) -> None:
        self.pending, self.failed, self._failed_in_a_row = [], [], 0
        stream = iter(self.engine.generate(self._requests(blocks), self.sampling))
        with self._bar(blocks, progress) as bar:
            while self._take_next(stream, bar):
                if self._is_time_to_save():
                    self._save(bar)
            self._save(bar)
        if self.failed:
            raise EngineError(
                f"{len(self.failed)} of {len(blocks)} requests failed ({self.failed[-1]}); the others are kept. The "
                "same command samples what is missing"
            )

    def _requests(self, blocks: Sequence[Block]) -> Iterator[Request]:
        for problem, start, size in blocks:
            seed = sample_seed(self.pool.spec.seed, self.pool.problem_ids[problem], start)
            yield Request(problem, self.prompts[problem], start, size, seed)

    def _take_next(self, stream: Iterator[Drawn | None], bar: Any) -> bool:
        """False at the end. If the engine fails or the user interrupts, what was sampled before is saved."""
        try:
            drawn = next(stream)
            if drawn is not None:
                self._take(drawn)
                bar.update(drawn.request.n)
        except StopIteration:
            return False
        except (KeyboardInterrupt, EngineError):
            self._save(bar)
            raise
        return True

    def _take(self, drawn: Drawn) -> None:
        request, completions = drawn
        if len(completions) != request.n:
            raise EngineError(
                f"engine {self.engine.name!r} returned {len(completions)} completions for a request of {request.n}"
            )
        reason = next((c.text for c in completions if c.finish == "error"), None)
        if reason is None:
            self._failed_in_a_row = 0
            self.pending.append(drawn)
            return
        self.failed.append(reason)
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= PATIENCE:
            raise EngineError(f"{PATIENCE} requests failed in a row ({reason}); what was sampled before is kept")

    def _is_time_to_save(self) -> bool:
        full = sum(request.n for request, _ in self.pending) >= PART_SAMPLES
        return full or time.monotonic() - self._saved >= self.save_every

    def _save(self, bar: Any) -> None:
        """Verify and append what is pending; under a plan that stops early, samples after a gap wait."""
        if ready := self._ready():
            rows = self._verified(ready)
            for request, completions in ready:
                self.repeats.add(request.problem, request.start, completions)
            self.repeats.check()
            kept = self._kept(rows)
            self.pool.append([self._sample(row) for row in kept])
            done = {id(drawn) for drawn in ready}
            self.pending = [drawn for drawn in self.pending if id(drawn) not in done]
            self._count(kept)
        self._saved = time.monotonic()
        bar.set_postfix_str(self._postfix(), refresh=False)

    def _ready(self) -> list[Drawn]:
        if self.ledger.successes is None:
            return list(self.pending)
        ready: list[Drawn] = []
        reached: dict[int, int] = {}
        for drawn in sorted(self.pending, key=lambda drawn: (drawn.request.problem, drawn.request.start)):
            problem, start = drawn.request.problem, drawn.request.start
            if self.ledger.is_done(problem):
                continue  # it stopped in an earlier part
            if start == reached.setdefault(problem, self.ledger.prefix(problem)):
                reached[problem] = start + drawn.request.n
                ready.append(drawn)
        return ready

    def _verified(self, ready: Sequence[Drawn]) -> list[_Row]:
        drawn = [(r.problem, r.start + i, c) for r, completions in ready for i, c in enumerate(completions)]
        verdicts = verdicts_of(
            self.task.verify,
            [self.pool.problems[problem] for problem, _, _ in drawn],
            [completion.text for _, _, completion in drawn],
            [completion.finish == "length" for _, _, completion in drawn],
        )
        self.failures.add(verdicts)
        self.failures.check()
        return [_Row(*sample, verdict) for sample, verdict in zip(drawn, verdicts, strict=True)]

    def _kept(self, rows: Sequence[_Row]) -> list[_Row]:
        """What the plan keeps: the samples of a problem up to the success at which it stops."""
        of_problem: defaultdict[int, list[_Row]] = defaultdict(list)
        for row in rows:
            of_problem[row.problem].append(row)
        kept: list[_Row] = []
        for problem, own in of_problem.items():
            kept += own[: self.ledger.kept(problem, np.array([row.verdict.correct for row in own]))]
        return kept

    def _sample(self, row: _Row) -> Sample:
        made = row.completion
        return Sample.judged(
            self.pool.problem_ids[row.problem],
            row.index,
            row.verdict,
            tokens=made.tokens,
            logprob=made.logprob,
            completion=made.text,
            truncated=made.finish == "length",
        )

    def _count(self, rows: Sequence[_Row]) -> None:
        correct_r = np.array([row.verdict.correct for row in rows])
        self.ledger.record(np.array([row.problem for row in rows]), np.array([row.index for row in rows]), correct_r)
        self.totals.samples += len(rows)
        self.totals.tokens += sum(row.completion.tokens or 0 for row in rows)

    # What the user sees

    def _bar(self, blocks: Sequence[Block], progress: bool) -> Any:
        size = sum(block.size for block in blocks)
        fixed = self.ledger.successes is None
        before = int(self.ledger.draws_p.sum()) if fixed else 0
        title = self.pool.spec.task if fixed else f"{self.pool.spec.task} to {self._end} samples"
        return tqdm(
            desc=visible(title),
            total=before + size,
            initial=before,
            unit=" samples",
            disable=not progress,
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
        )

    def _postfix(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        parts = [f"{self.totals.tokens / seconds:,.0f} tokens/s"]
        pass_at_1 = self.ledger.pass_at_1(self._end)
        if pass_at_1 == pass_at_1:
            parts.insert(0, f"pass@1 {pass_at_1:.3f}")
        if self.totals.verdicts.failed:
            parts.append(f"{self.totals.verdicts.failed} verifier failures")
        if self.failed:
            parts.append(f"{len(self.failed)} requests failed")
        return ", ".join(parts)
