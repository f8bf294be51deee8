"""Counting a pool: samples and correct samples per problem, hits per unit, samples per answer class.

A unit is a (problem, correct answer class). Rows come in as chunks of arrays and leave as counts; nothing here loops
over rows in Python or needs a completion. Suffixes: `_r` rows, `_p` problems, `_u` units, `_c` answer classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offleash.eval.errors import PoolError

_TEXT = pa.large_string()
_CLASSES = pa.schema([("problem", pa.int64()), ("answer", _TEXT), ("count", pa.int64())])


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


@dataclass(frozen=True, slots=True, eq=False)
class AnswerCounts:
    """How often each problem was given each answer, sorted by problem and then answer; "no answer" is a class, None."""

    problem_ids: tuple[str, ...]
    problem_c: np.ndarray
    """Index into `problem_ids`."""
    answer_c: pa.ChunkedArray
    """Text, null for "no answer"."""
    count_c: np.ndarray


def count_answers(problem_ids: Sequence[str], chunks: Iterable[tuple[np.ndarray, pa.DictionaryArray]]) -> AnswerCounts:
    """From chunks of (problem_r, answer_r)."""
    return _merge(problem_ids, [_classes(problem_r, answer_r) for problem_r, answer_r in chunks])


def count_hits(
    problem_ids: Sequence[str],
    answers_p: Sequence[Sequence[str] | None],
    chunks: Iterable[tuple[np.ndarray, np.ndarray, pa.DictionaryArray | None]],
) -> Hits:
    """From the correct answers that problems list and chunks of (problem_r, correct_r, answer_r).

    `answer_r` may be None if no problem lists its answers. Raises PoolError for a correct sample whose answer is not
    among those its problem lists.
    """
    size = len(problem_ids)
    listed_p = np.array([answers is not None for answers in answers_p], dtype=bool)
    n_p, correct_p = np.zeros(size, np.int64), np.zeros(size, np.int64)
    classes = []
    for problem_r, correct_r, answer_r in chunks:
        n_p += np.bincount(problem_r, minlength=size)
        correct_p += np.bincount(problem_r[correct_r], minlength=size)
        if answer_r is not None:
            rows = np.flatnonzero(correct_r & listed_p[problem_r])
            classes.append(_classes(problem_r[rows], answer_r.take(pa.array(rows))))
    problem_u, answer_u = _units(answers_p)
    hits_u = np.where(listed_p[problem_u], 0, correct_p[problem_u])
    _add_listed(hits_u, problem_u, answer_u, _merge(problem_ids, classes))
    return Hits(tuple(problem_ids), n_p, correct_p, problem_u, answer_u, hits_u)


def _classes(problem_r: np.ndarray, answer_r: pa.DictionaryArray) -> pa.Table:
    """The distinct (problem, answer) pairs of a chunk, with their counts."""
    words = answer_r.dictionary.cast(_TEXT)
    none = len(words)
    code_r = pc.fill_null(answer_r.indices, none).to_numpy(zero_copy_only=False)
    key_c, count_c = np.unique(problem_r.astype(np.int64) * (none + 1) + code_r, return_counts=True)
    problem_c, code_c = np.divmod(key_c, none + 1)
    answer_c = pa.concat_arrays([words, pa.nulls(1, _TEXT)]).take(pa.array(code_c))
    return pa.table({"problem": problem_c, "answer": answer_c, "count": count_c}, schema=_CLASSES)


def _merge(problem_ids: Sequence[str], classes: Sequence[pa.Table]) -> AnswerCounts:
    table = pa.concat_tables([_CLASSES.empty_table(), *classes])
    table = table.group_by(["problem", "answer"]).aggregate([("count", "sum")])
    table = table.sort_by([("problem", "ascending"), ("answer", "ascending")])
    return AnswerCounts(
        problem_ids=tuple(problem_ids),
        problem_c=table.column("problem").to_numpy(),
        answer_c=table.column("answer"),
        count_c=table.column("count_sum").to_numpy(),
    )


def _units(answers_p: Sequence[Sequence[str] | None]) -> tuple[np.ndarray, tuple[str | None, ...]]:
    units_p: list[Sequence[str | None]] = [(None,) if answers is None else answers for answers in answers_p]
    problem_u = np.repeat(np.arange(len(units_p)), [len(units) for units in units_p])
    return problem_u, tuple(answer for units in units_p for answer in units)


def _add_listed(
    hits_u: np.ndarray, problem_u: np.ndarray, answer_u: Sequence[str | None], counts: AnswerCounts
) -> None:
    unit_of = {key: unit for unit, key in enumerate(zip(problem_u.tolist(), answer_u, strict=True))}
    for problem, answer, count in zip(
        counts.problem_c.tolist(), counts.answer_c.to_pylist(), counts.count_c.tolist(), strict=True
    ):
        unit = unit_of.get((problem, answer))
        if unit is None:
            raise PoolError(
                f"problem {counts.problem_ids[problem]!r}: {count} samples answering {answer!r:.80} are marked correct "
                "but its list of correct answers does not have it; the task's verifier and its list disagree"
            )
        hits_u[unit] += count
