"""The grid of a run: how often each problem, answer or spelling was hit at every measured step, and what moved.

One row per unit, one column per step. A cell's mark says what became of the unit against the base, at a false discovery
rate of 5 % within its column (`browse.discovery`): noise alone would mark few cells as lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offleash.eval.browse.discovery import moves
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool
from offleash.eval.problem import Problem, chat_text, cut_text

Level = Literal["problem", "answer", "spelling"]
LEVELS: tuple[Level, ...] = ("problem", "answer", "spelling")
MARKS = ("out", "kept", "perhaps lost", "lost", "perhaps gained", "gained")
"""Of a cell: hit by neither side, by both, by the base alone, by the policy alone."""
SHORT = 160

Ints = NDArray[np.int64]
_Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Column:
    """Hits of a model's samples by (problem id, answer), where there are any, and its samples by problem id."""

    hits: dict[_Key, int]
    n: dict[str, int]


def columns(pool: Pool, k: int | None = None) -> dict[Level, Column]:
    """At every level, of the first k samples of each problem; counted in one pass.

    At the level of problems the answer is None, and so it is at that of answers for a problem whose correct answers are
    not listed. Samples without a spelling on record hit none.
    """
    ids = pool.problem_ids
    n_p = np.zeros(len(ids), np.int64)
    problem_parts, text_parts = [], []
    for chunk in pool.scan(("correct", "answer", "spelling"), k):
        n_p += np.bincount(chunk.problem_r, minlength=len(ids))
        right = chunk.take(np.flatnonzero(chunk.columns.column("correct").to_numpy(zero_copy_only=False)))
        problem_parts.append(right.problem_r)
        text_parts.append(right.columns.select(["answer", "spelling"]))
    problem_r = np.concatenate([np.zeros(0, np.int64), *problem_parts])
    texts = pa.Table.from_batches(text_parts).unify_dictionaries() if text_parts else None
    listed_p = np.array([answers is not None for answers in pool.answers], dtype=bool)
    every = np.arange(len(problem_r))
    by_problem = _counts(ids, problem_r, every, None)
    by_answer = {} if texts is None else _counts(ids, problem_r, every[listed_p[problem_r]], texts["answer"])
    if not listed_p.all():
        by_answer = by_answer | _counts(ids, problem_r, every[~listed_p[problem_r]], None)
    by_spelling = {} if texts is None else _counts(ids, problem_r, every, texts["spelling"], known=True)
    n = dict(zip(ids, n_p.tolist(), strict=True))
    return {"problem": Column(by_problem, n), "answer": Column(by_answer, n), "spelling": Column(by_spelling, n)}


def _counts(
    ids: Sequence[str], problem_r: Ints, rows: Ints, text: pa.ChunkedArray | None, known: bool = False
) -> dict[_Key, int]:
    """Rows by (problem, text). `known`: without those that have no text."""
    if text is None:
        code_r, words = np.zeros(len(problem_r), np.int64), [None]
    else:
        whole = text.combine_chunks()
        words = [*whole.dictionary.to_pylist(), None]
        code_r = pc.fill_null(whole.indices, len(words) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
        rows = rows[code_r[rows] < len(words) - 1] if known else rows
    key_c, count_c = np.unique(problem_r[rows] * len(words) + code_r[rows], return_counts=True)
    problem_c, code_c = np.divmod(key_c, len(words))
    return {
        (ids[p], words[code]): hits
        for p, code, hits in zip(problem_c.tolist(), code_c.tolist(), count_c.tolist(), strict=True)
    }


def grid(level: Level, base: Column, steps: dict[int, Column], problems: Sequence[Problem]) -> dict[str, Any]:
    """As JSON: rows in the problems' order, those of one problem by the base's hits, without units that nobody hit.

    `base` and each of `steps` have `hits` by row and `n`, one number or one by problem; each step also has `marks`, a
    text with a digit for each row, the index into MARKS.
    """
    if level not in LEVELS:
        raise ConfigError(f"a grid has the levels {', '.join(LEVELS)}, got {level!r}")
    keys = _rows(base, steps, problems, whole=level == "problem")
    rows = {key: row for row, key in enumerate(keys)}
    place = {problem.id: i for i, problem in enumerate(problems)}
    problem_u = np.array([place[problem] for problem, _ in keys], np.int64)
    base_u, n_base_p = _values(base, rows, problems)
    columns_json = {}
    for step, found in sorted(steps.items()):
        policy_u, n_p = _values(found, rows, problems)
        mark_u = marks_of(base_u, policy_u, n_base_p[problem_u], n_p[problem_u])
        digits = (mark_u + ord("0")).astype(np.uint8).tobytes().decode("ascii")
        columns_json[str(step)] = {"hits": policy_u.tolist(), "n": _short_list(n_p), "marks": digits}
    return {
        "level": level,
        "marks": MARKS,
        "problems": [{"id": p.id, "prompt": _short(p), "gold": cut_text(p.gold, SHORT)} for p in problems],
        "rows": [[place[problem], answer] for problem, answer in keys],
        "base": {"hits": base_u.tolist(), "n": _short_list(n_base_p)},
        "steps": columns_json,
    }


def marks_of(base_u: Ints, policy_u: Ints, n_base_u: Ints, n_policy_u: Ints) -> Ints:
    """The mark of each unit, as an index into MARKS. Without samples on one side nothing is lost or gained: 0."""
    lost_u, gained_u = moves(base_u, policy_u, n_base_u, n_policy_u)
    known_u = (n_base_u > 0) & (n_policy_u > 0)
    mark_u = np.zeros(base_u.shape, np.int64)
    mark_u[(base_u > 0) & (policy_u > 0)] = MARKS.index("kept")
    mark_u[(base_u > 0) & (policy_u == 0) & known_u] = MARKS.index("perhaps lost")
    mark_u[(base_u == 0) & (policy_u > 0) & known_u] = MARKS.index("perhaps gained")
    mark_u[lost_u & known_u] = MARKS.index("lost")
    mark_u[gained_u & known_u] = MARKS.index("gained")
    return mark_u


def _rows(base: Column, steps: dict[int, Column], problems: Sequence[Problem], whole: bool) -> list[_Key]:
    if whole:
        return [(problem.id, None) for problem in problems]
    place = {problem.id: i for i, problem in enumerate(problems)}
    hit = {key: None for found in (base, *steps.values()) for key in found.hits if key[0] in place}
    return sorted(hit, key=lambda key: (place[key[0]], -base.hits.get(key, 0), str(key[1])))


def _values(found: Column, rows: dict[_Key, int], problems: Sequence[Problem]) -> tuple[Ints, Ints]:
    """Hits of every row, and samples of every problem."""
    hits_u = np.zeros(len(rows), np.int64)
    known = [(rows[key], hits) for key, hits in found.hits.items() if key in rows]
    if known:
        row_c, hits_c = np.array(known, np.int64).T
        hits_u[row_c] = hits_c
    return hits_u, np.array([found.n.get(problem.id, 0) for problem in problems], np.int64)


def _short_list(n_p: Ints) -> int | list[int]:
    """One number where all are the same."""
    return int(n_p[0]) if n_p.size and (n_p == n_p[0]).all() else n_p.tolist()


def _short(problem: Problem) -> str:
    """The start of the question on one line: of a chat, its last message."""
    said = problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1:]
    return cut_text(" ".join(chat_text(said, between_parts=" ").split()), SHORT)
