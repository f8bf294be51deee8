"""The loop that scores a pool's completions under a model, and goes on where it was stopped.

Completions are taken in groups, in the order of the pool, and a group is written whole: a run that was killed and
continued computes every group as one that was not, to the last bit.
"""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from offleash.eval.engines.model import one_line
from offleash.eval.errors import EngineError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.store import Chunk
from offleash.eval.scoring.score_folder import ScoreFolder
from offleash.eval.scoring.teacher_forcing import Scores, score
from offleash.eval.scoring.tokens import TextEncoder, was_cut

GROUP_ROWS, GROUP_LETTERS = 256, 500_000

Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One stored completion."""

    problem: int
    index: int
    status: str
    drawn_tokens: int | None
    text: str | None


def score_pool(
    pool: Pool,
    folder: ScoreFolder,
    model: Any,
    encoder: TextEncoder,
    prompts: Sequence[list[int]],
    *,
    k: int | None = None,
    batch_tokens: int = 16384,
    save_every: float = 10.0,
    show: bool = True,
) -> int:
    """Score what the folder lacks of the first `k` draws of the first problems, one for each of `prompts`.

    Returns how many completions were looked at. Raises EngineError if the model cannot score them.
    """
    wanted, done_pk = wanted_draws(pool, len(prompts), k), folder.done()
    before = int(done_pk[: len(prompts), :k].sum())
    pending: list[Columns] = []
    saved = started = time.monotonic()
    with _bar(pool, folder, wanted, before, show) as bar:
        running = Running(bar, started)
        try:
            for group in _groups(pool, len(prompts), k):
                rows = [row for row in group if not done_pk[row.problem, row.index]]
                if rows:
                    pending.append(_score_rows(pool, folder, model, encoder, prompts, rows, batch_tokens))
                    running.add(pending[-1])
                if pending and time.monotonic() - saved >= save_every:
                    _save(folder, pending)
                    saved = time.monotonic()
        finally:
            _save(folder, pending)
    return running.count


def wanted_draws(pool: Pool, problems: int, k: int | None) -> int:
    """How many draws the pool holds among the first `k` of its first problems."""
    limit = pool.spec.k if k is None else k
    return sum(limit - len(missing) for missing in pool.missing(k)[:problems])


def score_checked(model: Any, prompts: list[list[int]], completions: list[list[int]], **settings: Any) -> Scores:
    """`scoring.score`, with what can go wrong in it as one line."""
    try:
        scores = score(model, prompts, completions, **settings)
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"out of memory: lower --batch-tokens ({one_line(error, 80)}); what was scored is kept"
        ) from error
    if not np.all(np.isfinite(scores.logprob_s)):
        raise EngineError("the model gives log-probabilities that are not finite: score it with --dtype float32")
    return scores


def _groups(pool: Pool, problems: int, k: int | None) -> Iterator[list[Row]]:
    group: list[Row] = []
    letters = 0
    for chunk in pool.scan(["status", "tokens", "completion"], k, pool.problem_ids[:problems]):
        for row in _rows(chunk):
            group.append(row)
            letters += len(row.text or "")
            if len(group) >= GROUP_ROWS or letters >= GROUP_LETTERS:
                yield group
                group, letters = [], 0
    if group:
        yield group


def _rows(chunk: Chunk) -> Iterator[Row]:
    columns = (chunk.columns.column(name).to_pylist() for name in ("status", "tokens", "completion"))
    return (Row(*values) for values in zip(chunk.problem_r.tolist(), chunk.index_r.tolist(), *columns, strict=True))


def _score_rows(
    pool: Pool,
    folder: ScoreFolder,
    model: Any,
    encoder: TextEncoder,
    prompts: Sequence[list[int]],
    rows: Sequence[Row],
    batch_tokens: int,
) -> Columns:
    ids = [None if row.text is None else _encode(pool, encoder, row) for row in rows]
    asked = [i for i, one in enumerate(ids) if one and encoder.fits(prompts[rows[i].problem], one)]
    scores = score_checked(
        model,
        [prompts[rows[i].problem] for i in asked],
        [ids[i] or [] for i in asked],
        temperature=folder.spec.temperature,
        batch_tokens=batch_tokens,
    )
    logprob, entropy = [math.nan] * len(rows), [math.nan] * len(rows)
    for place, i in enumerate(asked):
        logprob[i], entropy[i] = float(scores.logprob_s[place]), float(scores.entropy_s[place])
    return {
        "problem_id": [pool.problem_ids[row.problem] for row in rows],
        "index": [row.index for row in rows],
        "tokens": [None if one is None else len(one) for one in ids],
        "drawn_tokens": [row.drawn_tokens for row in rows],
        "logprob": logprob,
        "entropy": entropy,
    }


def _encode(pool: Pool, encoder: TextEncoder, row: Row) -> list[int]:
    ids = encoder.ids(row.text or "")
    return ids if was_cut(pool.spec, row.status, row.drawn_tokens, len(ids)) else [*ids, *encoder.end_ids]


def _save(folder: ScoreFolder, pending: list[Columns]) -> None:
    if pending:
        folder.append({name: [value for columns in pending for value in columns[name]] for name in pending[0]})
        pending.clear()


class Running:
    """What the bar says: rate, time left, and the perplexity so far (over completions, not yet over problems)."""

    def __init__(self, bar: Any, started: float) -> None:
        self.bar, self.started = bar, started
        self.count = self.tokens = self.scored = 0
        self.nll = 0.0

    def add(self, columns: Columns) -> None:
        for tokens, logprob in zip(columns["tokens"], columns["logprob"], strict=True):
            if math.isfinite(logprob):
                self.tokens += tokens
                self.scored += 1
                self.nll -= logprob / tokens
        self.count += len(columns["index"])
        rate = self.tokens / max(time.monotonic() - self.started, 1e-9)
        so_far = f"perplexity {math.exp(self.nll / self.scored):.3f}, " if self.scored else ""
        self.bar.set_postfix_str(f"{so_far}{rate:,.0f} tokens/s", refresh=False)
        self.bar.update(len(columns["index"]))


def _bar(pool: Pool, folder: ScoreFolder, wanted: int, before: int, show: bool) -> Any:
    return tqdm(
        desc=f"{pool.spec.task} under {folder.name}",
        total=wanted,
        initial=before,
        unit=" completions",
        disable=not show,
        mininterval=0.1 if sys.stderr.isatty() else 10.0,
    )
