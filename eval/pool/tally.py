"""One pass over a pool: everything a comparison needs of its samples, counted per problem.

Hits, answer classes with how many of their samples were correct, verdict statuses, and sums of what was measured of
each completion. `limit_p` keeps the first draws of each problem only, so that two pools of different budgets can be
brought to the same draws. Chunks come and go: what stays is a few numbers per problem and per answer class.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offleash.eval.pool.counts import Hits, count_hits
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.store import Chunk
from offleash.eval.problem import Status
from offleash.eval.stats.entropy import answer_entropy, answer_entropy_corrected
from offleash.eval.stats.passk import majority_at_k

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STATUSES: tuple[str, ...] = get_args(Status)
VALUES = ("tokens", "token_entropy", "nll", "base_nll", "kl_base_k1", "policy_nll")
"""Of one completion: its length, its mean token entropy, minus its log-probability per token under the model that drew
it and under the base, the difference of the two log-probabilities, and the same as before under the policy: no pool's
samples hold that one, `offleash score` adds it."""

_COLUMNS = ("correct", "answer", "status", "tokens", "logprob", "base_logprob", "entropy")
_TEXT = pa.large_string()
_CLASSES = pa.schema([("problem", pa.int64()), ("answer", _TEXT), ("count", pa.int64()), ("correct", pa.int64())])
_MERGE_ROWS = 3_000_000  # classes of separate chunks held before they are merged
_NOTE_ROWS = 5_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Of the draws that were counted. Answer classes are sorted by problem."""

    hits: Hits
    class_problem: Ints
    class_count: Ints
    class_correct: Ints
    """How many of a class's samples were judged correct."""
    class_answered: NDArray[np.bool_]
    """False for the class "no answer"."""
    status_ps: Ints
    """[problems, statuses], in the order of STATUSES."""
    sum_pv: Floats
    known_pv: Ints
    """[problems, values], in the order of VALUES: the sum over the samples where it is known, and their number."""

    def mean(self, value: str) -> Floats:
        """Mean over the samples of each problem where it is known; NaN where it never is."""
        column = VALUES.index(value)
        return _ratio(self.sum_pv[:, column], self.known_pv[:, column])

    def status_share(self, status: str) -> Floats:
        return _ratio(self.status_ps[:, STATUSES.index(status)], self.hits.n_p)

    def accuracy(self) -> Floats:
        return _ratio(self.hits.correct_p, self.hits.n_p)

    def answer_entropies(self) -> tuple[Floats, Floats]:
        """Plug-in and corrected entropy of each problem's answers, in nats; NaN for a problem without samples."""
        counts_p = self._by_problem(self.class_count)
        return (
            np.array([answer_entropy(counts) for counts in counts_p]),
            np.array([answer_entropy_corrected(counts) for counts in counts_p]),
        )

    def majority(self) -> Floats:
        """Whether the most common answer of all counted draws is correct, ties split; NaN for a problem without any."""
        rng = np.random.default_rng(0)  # never used: the vote is over every draw
        right_c = 2 * self.class_correct > self.class_count
        columns = (self._by_problem(column) for column in (self.class_count, right_c, self.class_answered))
        votes_p = []
        for counts, right, answered in zip(*columns, strict=True):
            silent = int(counts[~answered].sum())
            votes = np.append(counts[answered], silent)
            drawn = int(counts.sum())
            votes_p.append(majority_at_k(votes, right[answered], drawn, rng=rng) if drawn else np.nan)
        return np.array(votes_p)

    def _by_problem(self, column_c: NDArray) -> list[NDArray]:
        edges = np.searchsorted(self.class_problem, np.arange(1, len(self.hits.problem_ids)))
        return np.split(column_c, edges)


def tally(pool: Pool, limit_p: Ints | None = None, note: Callable[[str], None] | None = None) -> Tally:
    """Count the draws of each problem with an index below its `limit_p` (default: all). `note` hears of long reads."""
    sums = _Sums(len(pool.problem_ids))
    listed = any(answers is not None for answers in pool.answers)
    chunks = _cut(pool, limit_p, note)

    def counted() -> Iterator[tuple[NDArray, NDArray, pa.DictionaryArray | None]]:
        for chunk in chunks:
            sums.add(chunk)
            yield chunk.problem_r, _flags(chunk), chunk.columns.column("answer") if listed else None

    hits = count_hits(pool.problem_ids, pool.answers, counted())
    return sums.finish(hits)


def _cut(pool: Pool, limit_p: Ints | None, note: Callable[[str], None] | None) -> Iterator[Chunk]:
    limit = None if limit_p is None else max(1, int(limit_p.max(initial=0)))
    seen, told = 0, 0
    for chunk in pool.scan(_COLUMNS, limit):
        seen += len(chunk.problem_r)
        if note is not None and seen - told >= _NOTE_ROWS:
            told = seen
            note(f"{pool.path}: {seen / 1e6:.0f} million draws read")
        if limit_p is None:
            yield chunk
            continue
        rows = np.flatnonzero(chunk.index_r < limit_p[chunk.problem_r])
        kept = chunk.columns if len(rows) == len(chunk.index_r) else chunk.columns.take(pa.array(rows))
        yield Chunk(chunk.problem_r[rows], chunk.index_r[rows], kept)


class _Sums:
    """What is added up besides the hits, chunk by chunk."""

    def __init__(self, problems: int) -> None:
        self.problems = problems
        self.status_ps = np.zeros((problems, len(STATUSES)), np.int64)
        self.sum_pv = np.zeros((problems, len(VALUES)))
        self.known_pv = np.zeros((problems, len(VALUES)), np.int64)
        self.classes: list[pa.Table] = []
        self.waiting = 0

    def add(self, chunk: Chunk) -> None:
        self._add_statuses(chunk)
        for column, value_r in enumerate(_values(chunk)):
            known_r = np.isfinite(value_r)
            problem_r, weights = chunk.problem_r[known_r], value_r[known_r]
            self.sum_pv[:, column] += np.bincount(problem_r, weights, minlength=self.problems)
            self.known_pv[:, column] += np.bincount(problem_r, minlength=self.problems)
        self.classes.append(_classes(chunk.problem_r, chunk.columns.column("answer"), _flags(chunk)))
        self.waiting += self.classes[-1].num_rows
        if self.waiting > _MERGE_ROWS:
            self.classes = [_merge(self.classes)]
            self.waiting = 0

    def _add_statuses(self, chunk: Chunk) -> None:
        status = chunk.columns.column("status")
        code_w = np.array([STATUSES.index(word) for word in status.dictionary.to_pylist()], dtype=np.int64)
        if len(code_w):
            key_r = chunk.problem_r * len(STATUSES) + code_w[status.indices.to_numpy(zero_copy_only=False)]
            self.status_ps += np.bincount(key_r, minlength=self.status_ps.size).reshape(self.status_ps.shape)

    def finish(self, hits: Hits) -> Tally:
        table = _merge(self.classes).sort_by("problem")
        return Tally(
            hits=hits,
            class_problem=table.column("problem").to_numpy(),
            class_count=table.column("count").to_numpy(),
            class_correct=table.column("correct").to_numpy(),
            class_answered=pc.is_valid(table.column("answer")).to_numpy(),
            status_ps=self.status_ps,
            sum_pv=self.sum_pv,
            known_pv=self.known_pv,
        )


def _values(chunk: Chunk) -> Iterator[Floats]:
    """A column for each of VALUES, NaN where unknown."""
    tokens, own, base, entropy = (_floats(chunk, name) for name in ("tokens", "logprob", "base_logprob", "entropy"))
    length = np.where(tokens > 0, tokens, np.nan)
    yield tokens
    yield entropy
    yield -own / length
    yield -base / length
    yield own - base
    yield np.full(len(tokens), np.nan)


def _floats(chunk: Chunk, name: str) -> Floats:
    column = chunk.columns.column(name)
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    return column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)


def _flags(chunk: Chunk) -> NDArray[np.bool_]:
    return chunk.columns.column("correct").to_numpy(zero_copy_only=False)


def _classes(problem_r: Ints, answer_r: pa.DictionaryArray, correct_r: NDArray[np.bool_]) -> pa.Table:
    """The distinct (problem, answer) pairs of a chunk, with their samples and their correct samples."""
    words = answer_r.dictionary.cast(_TEXT)
    none = len(words)
    code_r = pc.fill_null(answer_r.indices, none).to_numpy(zero_copy_only=False)
    key_r = (problem_r.astype(np.int64) * (none + 1) + code_r) * 2 + correct_r
    key_c, count_c = np.unique(key_r, return_counts=True)
    pair_c, right_c = np.divmod(key_c, 2)
    problem_c, code_c = np.divmod(pair_c, none + 1)
    answer_c = pa.concat_arrays([words, pa.nulls(1, _TEXT)]).take(pa.array(code_c))
    columns = {"problem": problem_c, "answer": answer_c, "count": count_c, "correct": count_c * right_c}
    return pa.table(columns, schema=_CLASSES)


def _merge(classes: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables([_CLASSES.empty_table(), *classes])
    table = table.group_by(["problem", "answer"]).aggregate([("count", "sum"), ("correct", "sum")])
    return table.rename_columns({"count_sum": "count", "correct_sum": "correct"}).select(_CLASSES.names).cast(_CLASSES)


def _ratio(total_p: NDArray, count_p: NDArray) -> Floats:
    return np.divide(total_p, count_p, out=np.full(len(count_p), np.nan), where=np.asarray(count_p) > 0)
