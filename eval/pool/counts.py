"""Counting samples: hits per problem and unit, and everything else a comparison needs.

A unit is a (problem, correct answer class). Rows come in as chunks of arrays and leave as counts; nothing here loops
over rows in Python or needs a completion. Suffixes: `_r` rows, `_p` problems, `_u` units, `_c` answer classes, `_s`
verdict statuses, `_v` values measured of each completion.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offleash.eval.errors import PoolError
from offleash.eval.pool.store import Answers, Chunk, float_column
from offleash.eval.problem import Status
from offleash.eval.stats.diversity import pcmd
from offleash.eval.stats.entropy import answer_entropies
from offleash.eval.stats.passk import majority_at_k
from offleash.eval.stats.unseen import unseen_mass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

STATUSES: tuple[str, ...] = get_args(Status)
VALUES = ("tokens", "token_entropy", "nll", "base_nll", "kl_base_k1", "policy_nll")
"""Of one completion: its length, its mean token entropy, minus its log-probability per token under the model that drew
it and under the base, the difference of the two log-probabilities, and minus its log-probability per token under the
policy, which no pool holds: `offleash score` adds it."""
TALLY_COLUMNS = ("correct", "answer", "status", "tokens", "logprob", "base_logprob", "entropy")

_TEXT = pa.large_string()
_CLASSES = pa.schema([("problem", pa.int64()), ("answer", _TEXT), ("count", pa.int64()), ("correct", pa.int64())])
_VOTES = 200  # random subsets of a problem's draws: their noise is far below that between problems
_MERGE_ROWS = 3_000_000  # classes of separate chunks held before they are merged


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """How often each problem was drawn and solved, and each unit hit.

    A problem whose correct answers are listed has one unit per listed answer, hit or not; any other has one unit, whose
    `unit_answer` is None, hit by every correct sample.
    """

    problem_ids: tuple[str, ...]
    n_p: np.ndarray
    correct_p: np.ndarray
    unit_problem: np.ndarray
    """Index into `problem_ids` of each unit's problem, ascending."""
    unit_answer: tuple[str | None, ...]
    unit_hits: np.ndarray

    def checksum(self) -> str:
        """Sha256 of all of it: two that agree give the same numbers."""
        arrays = (self.n_p, self.correct_p, self.unit_problem, self.unit_hits)
        content = [self.problem_ids, self.unit_answer, *(array.tolist() for array in arrays)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Of the draws that were counted. Answer classes are sorted by problem.

    They leave out samples whose answer says nothing: the verifier failed ("error"), or time ran out before the answer
    was read. Those are not "no answer".
    """

    hits: Hits
    class_problem: Ints
    class_count: Ints
    class_correct: Ints
    """How many of a class's samples were judged correct."""
    class_answered: Flags
    """False for the class "no answer"."""
    unknown_p: Ints
    """Samples that were judged although no answer is on record, as in an import of verdicts alone: what is made of
    answers is then undefined (NaN), and so it is of problems of such a pool that have no answer at all."""
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
        share_p = _ratio(self.status_ps[:, STATUSES.index(status)], self.hits.n_p)
        return self._where_known(share_p) if status == "no_answer" else share_p

    def accuracy(self) -> Floats:
        return _ratio(self.hits.correct_p, self.hits.n_p)

    def answer_entropies(self, k_p: Ints | None = None) -> tuple[Floats, Floats]:
        """Plug-in and corrected entropy of each problem's answers, in nats; NaN for a problem without samples.

        The plug-in is that expected of `k_p` draws, any of those judged (default: all).
        """
        counted = (self.class_problem, self.class_count, len(self.hits.problem_ids))
        plain_p, corrected_p = answer_entropies(*counted, self._votes_p(k_p))
        return self._where_known(plain_p), self._where_known(corrected_p)

    def pcmd(self) -> Floats:
        """Probability that two correct samples of a problem differ; NaN with fewer than two."""
        return self._where_known(pcmd(self.class_problem, self.class_correct, len(self.hits.problem_ids)))

    def unseen(self, k_p: Ints | None = None) -> tuple[Floats, Floats]:
        """The probability that a sample after k of a problem's (default: all) gives an answer, or a correct answer,
        not seen before."""
        every_p, right_p = (
            unseen_mass(self.class_problem[kept], self.class_count[kept], self.hits.n_p, k_p)
            for kept in (self.class_answered, self.class_answered & (self.class_correct > 0))
        )
        return self._where_known(every_p), self._where_known(right_p)

    def majority(self, k_p: Ints | None = None) -> Floats:
        """How likely the most common answer of `k_p` draws, any of those judged (default: all), is correct.

        Ties are split; NaN without a verdict.
        """
        rng = np.random.default_rng(0)
        right_c = 2 * self.class_correct > self.class_count
        # The order of classes must not matter where subsets are drawn at random.
        order = np.lexsort((self.class_count, right_c, self.class_answered, self.class_problem))
        edges = np.searchsorted(self.class_problem[order], np.arange(1, len(self.hits.problem_ids)))
        columns = (np.split(column_c[order], edges) for column_c in (self.class_count, right_c, self.class_answered))
        judged_p = self.hits.n_p - self.status_ps[:, STATUSES.index("error")]
        votes_p = []
        for judged, k, counts, right, answered in zip(judged_p, self._votes_p(k_p).tolist(), *columns, strict=True):
            silent = int(counts[~answered].sum())
            votes = np.append(counts[answered], silent)
            nobody = 0.0 if judged else np.nan
            votes_p.append(majority_at_k(votes, right[answered], k, rng=rng, resamples=_VOTES) if k else nobody)
        return self._where_known(np.array(votes_p))

    def _votes_p(self, k_p: Ints | None) -> Ints:
        """How many of each problem's answers are looked at: k, or all there are."""
        all_p = np.bincount(self.class_problem, self.class_count, len(self.hits.problem_ids)).astype(np.int64)
        return all_p if k_p is None else np.minimum(all_p, k_p)

    def _where_known(self, value_p: Floats) -> Floats:
        return np.where(self.unknown_p > 0, np.nan, value_p)


class _AnswerClasses:
    """Samples and correct samples of each (problem, answer), added up chunk by chunk in bounded memory."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.waiting = 0

    def add(self, problem_r: Ints, answer_r: pa.DictionaryArray, correct_r: Flags | bool = False) -> None:
        words = answer_r.dictionary.cast(_TEXT)
        none = len(words)
        code_r = pc.fill_null(answer_r.indices, none).to_numpy(zero_copy_only=False)
        key_r = (problem_r.astype(np.int64) * (none + 1) + code_r) * 2 + correct_r
        key_c, count_c = np.unique(key_r, return_counts=True)
        pair_c, right_c = np.divmod(key_c, 2)
        problem_c, code_c = np.divmod(pair_c, none + 1)
        answer_c = pa.concat_arrays([words, pa.nulls(1, _TEXT)]).take(pa.array(code_c))
        columns = {"problem": problem_c, "answer": answer_c, "count": count_c, "correct": count_c * right_c}
        self.tables.append(pa.table(columns, schema=_CLASSES))
        self.waiting += len(key_c)
        if self.waiting > _MERGE_ROWS:
            self.tables, self.waiting = [self.merged()], 0

    def merged(self) -> pa.Table:
        """One row per (problem, answer), in no particular order."""
        table = pa.concat_tables([_CLASSES.empty_table(), *self.tables])
        table = table.group_by(["problem", "answer"]).aggregate([("count", "sum"), ("correct", "sum")])
        names = {"count_sum": "count", "correct_sum": "correct"}
        return table.rename_columns(names).select(_CLASSES.names).cast(_CLASSES)

    def counts(self) -> list[tuple[int, str | None, int]]:
        """(problem, answer, samples), sorted by problem and then answer; "no answer" is a class, None."""
        table = self.merged().sort_by([("problem", "ascending"), ("answer", "ascending")])
        problem_c, answer_c, count_c = (table.column(name).to_pylist() for name in ("problem", "answer", "count"))
        return list(zip(problem_c, answer_c, count_c, strict=True))


def count_hits(problem_ids: Sequence[str], answers_p: Answers, chunks: Iterable[Chunk]) -> Hits:
    """From the correct answers that problems list and chunks with the columns correct and, if any are listed, answer.

    Raises PoolError for a correct sample whose answer is not among those its problem lists.
    """
    size = len(problem_ids)
    listed_p = np.array([answers is not None for answers in answers_p], dtype=bool)
    n_p, correct_p = np.zeros(size, np.int64), np.zeros(size, np.int64)
    classes = _AnswerClasses()
    for chunk in chunks:
        problem_r, correct_r = chunk.problem_r, _flags(chunk)
        n_p += np.bincount(problem_r, minlength=size)
        correct_p += np.bincount(problem_r[correct_r], minlength=size)
        if listed_p.any():
            rows = np.flatnonzero(correct_r & listed_p[problem_r])
            classes.add(problem_r[rows], chunk.columns.column("answer").take(pa.array(rows)))
    problem_u, answer_u = _units(answers_p)
    hits_u = np.where(listed_p[problem_u], 0, correct_p[problem_u])
    _add_listed(hits_u, problem_u, answer_u, classes, problem_ids)
    return Hits(tuple(problem_ids), n_p, correct_p, problem_u, answer_u, hits_u)


def tally(problem_ids: Sequence[str], answers_p: Answers, chunks: Iterable[Chunk]) -> Tally:
    """From the correct answers that problems list and chunks with TALLY_COLUMNS, in one pass."""
    sums = _Sums(len(problem_ids))

    def counted() -> Iterator[Chunk]:
        for chunk in chunks:
            sums.add(chunk)
            yield chunk

    return sums.finish(count_hits(problem_ids, answers_p, counted()))


class _Sums:
    """What is added up besides the hits, chunk by chunk."""

    def __init__(self, problems: int) -> None:
        self.problems = problems
        self.status_ps = np.zeros((problems, len(STATUSES)), np.int64)
        self.sum_pv = np.zeros((problems, len(VALUES)))
        self.known_pv = np.zeros((problems, len(VALUES)), np.int64)
        self.unknown_p = np.zeros(problems, np.int64)
        self.classes = _AnswerClasses()

    def add(self, chunk: Chunk) -> None:
        self._add_answers(chunk, self._add_statuses(chunk))
        for column, value_r in enumerate(_values(chunk)):
            known_r = np.isfinite(value_r)
            problem_r, weights = chunk.problem_r[known_r], value_r[known_r]
            self.sum_pv[:, column] += np.bincount(problem_r, weights, minlength=self.problems)
            self.known_pv[:, column] += np.bincount(problem_r, minlength=self.problems)

    def _add_answers(self, chunk: Chunk, status_r: Ints) -> None:
        answer_r = chunk.columns.column("answer")
        ok, timeout, error = (status_r == STATUSES.index(word) for word in ("ok", "timeout", "error"))
        silent_r = pc.is_null(answer_r).to_numpy(zero_copy_only=False)
        self.unknown_p += np.bincount(chunk.problem_r[ok & silent_r], minlength=self.problems)
        left_out_r = error | (timeout & silent_r)
        kept = chunk.take(np.flatnonzero(~left_out_r)) if left_out_r.any() else chunk
        self.classes.add(kept.problem_r, kept.columns.column("answer"), _flags(kept))

    def _add_statuses(self, chunk: Chunk) -> Ints:
        """Returns the status of each row, as an index into STATUSES."""
        status = chunk.columns.column("status")
        code_w = np.array([STATUSES.index(word) for word in status.dictionary.to_pylist()], dtype=np.int64)
        status_r = code_w[status.indices.to_numpy(zero_copy_only=False)]
        key_r = chunk.problem_r * len(STATUSES) + status_r
        self.status_ps += np.bincount(key_r, minlength=self.status_ps.size).reshape(self.status_ps.shape)
        return status_r

    def finish(self, hits: Hits) -> Tally:
        table = self.classes.merged().sort_by("problem")
        if self.unknown_p.any():  # of a verifier that names no answers, completions that were cut off name none either
            answered = table.column("problem").to_numpy()[pc.is_valid(table.column("answer")).to_numpy()]
            drawn_p = np.bincount(table.column("problem").to_numpy(), minlength=self.problems) > 0
            nameless_p = drawn_p & (np.bincount(answered, minlength=self.problems) == 0)
            self.unknown_p = np.maximum(self.unknown_p, nameless_p)
        return Tally(
            hits=hits,
            class_problem=table.column("problem").to_numpy(),
            class_count=table.column("count").to_numpy(),
            class_correct=table.column("correct").to_numpy(),
            class_answered=pc.is_valid(table.column("answer")).to_numpy(),
            unknown_p=self.unknown_p,
            status_ps=self.status_ps,
            sum_pv=self.sum_pv,
            known_pv=self.known_pv,
        )


def _values(chunk: Chunk) -> Iterator[Floats]:
    """A column for each of VALUES, NaN where unknown."""
    names = ("tokens", "logprob", "base_logprob", "entropy")
    tokens, own, base, entropy = (float_column(chunk.columns.column(name)) for name in names)
    length = np.where(tokens > 0, tokens, np.nan)
    yield tokens
    yield entropy
    yield -own / length
    yield -base / length
    yield own - base
    yield np.full(len(tokens), np.nan)


def _flags(chunk: Chunk) -> Flags:
    return chunk.columns.column("correct").to_numpy(zero_copy_only=False)


def _ratio(total_p: NDArray, count_p: NDArray) -> Floats:
    return np.divide(total_p, count_p, out=np.full(len(count_p), np.nan), where=np.asarray(count_p) > 0)


def _units(answers_p: Answers) -> tuple[np.ndarray, tuple[str | None, ...]]:
    units_p: list[Sequence[str | None]] = [(None,) if answers is None else answers for answers in answers_p]
    problem_u = np.repeat(np.arange(len(units_p)), [len(units) for units in units_p])
    return problem_u, tuple(answer for units in units_p for answer in units)


def _add_listed(
    hits_u: Ints, problem_u: Ints, answer_u: Sequence[str | None], classes: _AnswerClasses, problem_ids: Sequence[str]
) -> None:
    unit_of = {key: unit for unit, key in enumerate(zip(problem_u.tolist(), answer_u, strict=True))}
    for problem, answer, count in classes.counts():
        unit = unit_of.get((problem, answer))
        if unit is None:
            raise PoolError(
                f"problem {problem_ids[problem]!r}: {count} samples answering {answer!r:.80} are marked correct "
                "but its list of correct answers does not have it; the task's verifier and its list disagree"
            )
        hits_u[unit] += count
