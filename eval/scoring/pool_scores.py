"""Scoring a pool: log-probability, perplexity and token entropy of its completions under any model.

Completions are processed in groups, in the order of the pool, and groups are written in full. A run that was killed and
resumed therefore computes every group exactly as an uninterrupted run does, bit for bit.
"""

import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from offleash.eval.console import visible
from offleash.eval.engines.base import library_versions
from offleash.eval.engines.model import ModelSource
from offleash.eval.engines.prompts import Prepared, prepare_prompts
from offleash.eval.errors import PoolError
from offleash.eval.groups import bounded_groups
from offleash.eval.lock import held
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.store import Chunk
from offleash.eval.scoring.score_folder import ScoreFolder, ScoreRows, ScoreSpec, find_scores
from offleash.eval.scoring.settings import ScoreSettings, resolve_scorer
from offleash.eval.scoring.summary import Summary, summarize
from offleash.eval.scoring.tokens import TextEncoder, find_encoder, prompt_ids, was_truncated

GROUP_ROWS, GROUP_CHARS = 256, 500_000

Columns = dict[str, list[Any]]


class PoolScores(NamedTuple):
    """The scores of a pool's completions under one model, as `score_pool` leaves them on disk."""

    path: Path
    """POOL/scores/NAME."""
    summary: Summary
    """Perplexity, token entropy and length, each an `Estimate` over problems."""
    rows: ScoreRows
    """One entry per completion."""
    new: int
    """How many completions this call processed; the others had been scored before."""
    notes: tuple[str, ...]
    """What was not scored, or not as it was sampled."""


def score_pool(
    pool: Pool | str | Path,
    model: str | Path,
    *,
    k: int | None = None,
    limit: int | None = None,
    temperature: float = 1.0,
    progress: bool = True,
    **settings: Any,
) -> PoolScores:
    """Score the completions of a pool under a model and keep the scores in POOL/scores/NAME, like `offleash score`.

    `model` is a hub id, a folder, a checkpoint, a folder with a PEFT adapter, or "lab". `settings` are the other
    fields of `ScoreSettings`: name, template, end_token, dtype, batch_tokens and so on. The same call resumes scores
    that are incomplete. Raises PoolError for scores of that name that were made with other settings or weights,
    EngineError if the model cannot score.

    >>> from offleash.eval import Sampling, load_task, sample_pool, score_pool
    >>> task = load_task("countdown", split="probe", n=4)
    >>> pool = sample_pool("lab", task, "pools/scored", k=8, sampling=Sampling(max_new_tokens=20), progress=False)
    >>> scores = score_pool(pool, "lab", k=4, progress=False)
    >>> scores.new, len(scores.rows.logprob_r), scores.summary.perplexity.n
    (16, 16, 4)
    >>> 1 < scores.summary.perplexity.value < 2
    True
    >>> score_pool("pools/scored", "lab", progress=False).new  # resumes: k=4 is done, the other half is new
    16
    """
    chosen = ScoreSettings(k=k, limit=limit, temperature=temperature, **settings)
    source = resolve_scorer(str(model), chosen)
    job = ScoringJob.prepare(pool if isinstance(pool, Pool) else Pool.open(pool), source, chosen)
    new = 0
    if not job.is_done:
        from offleash.eval.scoring.teacher_forcing import load_model

        new = job.run(load_model(source), progress=progress)
    return job.result(new)


@dataclass(frozen=True, slots=True)
class Row:
    """One stored completion."""

    problem: int
    index: int
    status: str
    sampled_tokens: int | None
    text: str | None


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """A pool to be scored under one model. All checks are done when it is prepared, before any weights are loaded."""

    pool: Pool
    folder: ScoreFolder
    encoder: TextEncoder
    prompts: list[list[int]]
    """Of the problems whose completions are scored."""
    template: str
    """In words."""
    wanted: int
    """Completions to score, including those that are done."""
    settings: ScoreSettings
    notes: tuple[str, ...]

    @classmethod
    def prepare(cls, pool: Pool, source: ModelSource, settings: ScoreSettings) -> "ScoringJob":
        if pool.spec.multi_turn:
            raise PoolError(
                f"{pool.path} holds transcripts of several turns, with what tools and environments wrote: their tokens "
                "cannot be scored as the model's. The monitor stored scores of the model's own tokens beside them"
            )
        if settings.k is not None and settings.k > pool.spec.k:
            raise PoolError(f"{pool.path} has a budget of {pool.spec.k} samples per problem, but k is {settings.k}")
        encoder = find_encoder(source, settings.end_token, pool.spec)
        prepared = prepare_prompts(pool.problems, source.tokenizer, settings.template, settings.template_args)
        notes = () if settings.force else _check_template(pool, source, prepared)
        prompts = prompt_ids(prepared)[: settings.limit]
        wanted = int(pool.seen(settings.k)[: len(prompts)].sum())
        if not wanted:
            few = "" if settings.k is settings.limit is None else " within the given k and limit"
            raise PoolError(f"{pool.path} has no samples{few}: draw them with offleash sample, or restore its parts")
        spec = ScoreSpec(
            pool=pool.manifest.created_as,
            model=source.name,
            revision=source.revision,
            weights=source.weights,
            dtype=source.dtype,
            template=prepared.template,
            temperature=float(settings.temperature),  # 1 and 1.0 are one setting
            end_token=encoder.end_token,
            versions=library_versions(),
        )
        same = next((one.name for one in find_scores(pool) if not one.spec.differences(spec)), None)
        folder = ScoreFolder.open_or_create(pool, settings.name or same or _folder_name(source.name), spec)
        return cls(pool, folder, encoder, prompts, prepared.words, wanted, settings, notes)

    @property
    def is_done(self) -> bool:
        return self._count_done(self.folder.done()) >= self.wanted

    def run(self, model: Any, *, progress: bool = True) -> int:
        """Score the completions that the folder lacks and return how many there were.

        Raises ConfigError if another process is at it.
        """
        path = self.folder.path
        with held(path, f"another process is scoring into {path}: wait for it; the same command then scores the rest"):
            return self._run(model, progress)

    def _run(self, model: Any, progress: bool) -> int:
        done_pk = self.folder.done()
        pending: list[Columns] = []
        saved = time.monotonic()
        with self._bar(self._count_done(done_pk), progress) as bar:
            meter = _Meter(bar)
            try:
                for group in self._groups():
                    rows = [row for row in group if not done_pk[row.problem, row.index]]
                    if rows:
                        pending.append(self._score(model, rows))
                        meter.add(pending[-1])
                    if pending and time.monotonic() - saved >= self.settings.save_every:
                        self._save(pending)
                        saved = time.monotonic()
            finally:
                self._save(pending)
        return meter.count

    def result(self, new: int = 0) -> PoolScores:
        """What the folder holds of the completions that were asked for."""
        rows = self.folder.read()
        rows = rows.where((rows.problem_r < len(self.prompts)) & (rows.index_r < (self.settings.k or np.inf)))
        found = summarize(rows.problem_r, rows.nll_r, rows.entropy_r, rows.tokens_r)
        return PoolScores(self.folder.path, found, rows, new, (*self.notes, *_notes(rows)))

    def _count_done(self, done_pk: np.ndarray) -> int:
        return int(done_pk[: len(self.prompts), : self.settings.k].sum())

    def _groups(self) -> Iterator[list[Row]]:
        columns, problem_ids = ["status", "tokens", "completion"], self.pool.problem_ids[: len(self.prompts)]
        chunks = self.pool.scan(columns, self.settings.k, problem_ids)
        rows = (row for chunk in chunks for row in _rows(chunk))
        return bounded_groups(rows, lambda row: row.text, GROUP_ROWS, GROUP_CHARS)

    def _score(self, model: Any, rows: Sequence[Row]) -> Columns:
        from offleash.eval.scoring.teacher_forcing import score_checked  # imports torch, which checks do not need

        ids = [None if row.text is None else self._encode(row) for row in rows]
        asked = [i for i, one in enumerate(ids) if one and self.encoder.fits(self.prompts[rows[i].problem], one)]
        prompts, completions = [self.prompts[rows[i].problem] for i in asked], [ids[i] or [] for i in asked]
        scores = score_checked(model, prompts, completions, self.settings)
        logprob_r, entropy_r = np.full((2, len(rows)), np.nan)
        logprob_r[asked], entropy_r[asked] = scores.logprob_s, scores.entropy_s
        return {
            "problem_id": [self.pool.problem_ids[row.problem] for row in rows],
            "index": [row.index for row in rows],
            "tokens": [None if one is None else len(one) for one in ids],
            "drawn_tokens": [row.sampled_tokens for row in rows],
            "logprob": logprob_r.tolist(),
            "entropy": entropy_r.tolist(),
        }

    def _encode(self, row: Row) -> list[int]:
        ids = self.encoder.ids(row.text or "")
        truncated = was_truncated(self.pool.spec, row.status, row.sampled_tokens, len(ids))
        return ids if truncated else [*ids, *self.encoder.end_ids]

    def _save(self, pending: list[Columns]) -> None:
        if pending:
            self.folder.append({name: [value for part in pending for value in part[name]] for name in pending[0]})
            pending.clear()

    def _bar(self, done: int, progress: bool) -> Any:
        return tqdm(
            desc=visible(f"{self.pool.spec.task} under {self.folder.name}"),
            total=self.wanted,
            initial=done,
            unit=" completions",
            disable=not progress,
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
        )


class _Meter:
    """Feeds the progress bar: rate and perplexity so far (a mean over completions, not yet over problems)."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.started = bar, time.monotonic()
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


def _check_template(pool: Pool, source: ModelSource, prepared: Prepared) -> tuple[str, ...]:
    """The same completion after another prompt has another score. Returns a note if the pool's template is unknown."""
    theirs = pool.spec.template
    if theirs == prepared.template:
        return ()
    if theirs == "unknown" or theirs.startswith("server:"):
        return ("the pool does not record which template it was sampled with",)
    raise PoolError(
        f"{pool.path} was sampled with another template or tokenizer than that of {source.name} (template: "
        f"{theirs[:12]} -> {prepared.template[:12]}): give the --template, --template-args or --tokenizer it was "
        "sampled with, or --force"
    )


def _folder_name(model: str) -> str:
    """A readable file name from the end of a path or from a hub id."""
    parts = [part for part in PurePath(model).parts[-3:] if part.strip("/.")]
    return re.sub(r"[^\w.@+-]+", "-", "-".join(parts)).strip("-.") or "model"


def _rows(chunk: Chunk) -> Iterator[Row]:
    columns = (chunk.columns.column(name).to_pylist() for name in ("status", "tokens", "completion"))
    return (Row(*values) for values in zip(chunk.problem_r.tolist(), chunk.index_r.tolist(), *columns, strict=True))


def _notes(rows: ScoreRows) -> list[str]:
    unscored = np.isnan(rows.logprob_r)
    counts = {
        "have no text stored": int(np.isnan(rows.tokens_r).sum()),
        "are empty": int((rows.tokens_r == 0).sum()),
        "do not fit into the model's context with their prompt": int((unscored & (rows.tokens_r > 0)).sum()),
    }
    total = len(unscored)
    found = [f"{count:,} of {total:,} completions {what}: not scored" for what, count in counts.items() if count]
    if retokenized := int(rows.retokenized_r.sum()):
        known = int((~unscored & np.isfinite(rows.drawn_r)).sum())
        found.append(
            f"{retokenized:,} of {known:,} completions were sampled with a different number of tokens than their text "
            "has: they are scored in another tokenization of the same text"
        )
    return found
