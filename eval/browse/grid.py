"""The grid of a run: how often each problem, answer or spelling was hit at every measured step, and what moved.

One row per unit, one column per step. A cell's mark says what became of the unit against the base, at a false discovery
rate of 5 % within its column (`stats.discovery`): noise alone would mark few cells as lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offleash.eval.comparison.examples import cut_text
from offleash.eval.errors import ConfigError
from offleash.eval.pool.counts import Hits
from offleash.eval.problem import Problem, chat_text
from offleash.eval.stats.discovery import moves

Level = Literal["problem", "answer", "spelling"]
LEVELS: tuple[Level, ...] = ("problem", "answer", "spelling")
MARKS = ("out", "kept", "perhaps lost", "lost", "perhaps gained", "gained")
"""Of a cell: hit by neither side, by both, by the base alone, by the policy alone."""
SHORT = 160

Ints = NDArray[np.int64]
_Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Column:
    """Hits of a model's samples by (problem id, answer), and its samples by problem id."""

    hits: dict[_Key, int]
    n: dict[str, int]


def column(hits: Hits, level: Level, problem_ids: Sequence[str]) -> Column:
    """Of these problems; at the level of problems the answer is None."""
    wanted = set(problem_ids)
    n = {name: count for name, count in zip(hits.problem_ids, hits.n_p.tolist(), strict=True) if name in wanted}
    if level == "problem":
        solved = zip(hits.problem_ids, hits.correct_p.tolist(), strict=True)
        return Column({(name, None): count for name, count in solved if name in wanted}, n)
    names = (hits.problem_ids[p] for p in hits.unit_problem.tolist())
    units = zip(names, hits.unit_answer, hits.unit_hits.tolist(), strict=True)
    return Column({(name, answer): count for name, answer, count in units if name in wanted}, n)


def grid(level: Level, base: Column, steps: dict[int, Column], problems: Sequence[Problem]) -> dict[str, Any]:
    """As JSON: rows in the problems' order, those of one problem by the base's hits, without units that nobody hit.

    `base` and each of `steps` have `hits` and `n` by row, each step also `marks` (indices into MARKS).
    """
    if level not in LEVELS:
        raise ConfigError(f"a grid has the levels {', '.join(LEVELS)}, got {level!r}")
    keys = _rows(base, steps, problems, whole=level == "problem")
    place = {problem.id: i for i, problem in enumerate(problems)}
    base_u, n_base_u = _values(base, keys)
    return {
        "level": level,
        "marks": MARKS,
        "problems": [{"id": p.id, "prompt": _short(p), "gold": p.gold[:SHORT]} for p in problems],
        "rows": [[place[problem], answer] for problem, answer in keys],
        "base": {"hits": base_u.tolist(), "n": n_base_u.tolist()},
        "steps": {
            str(step): _column_json(base_u, n_base_u, *_values(found, keys)) for step, found in sorted(steps.items())
        },
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
    totals: dict[_Key, int] = {}
    for found in (base, *steps.values()):
        for key, count in found.hits.items():
            totals[key] = totals.get(key, 0) + count
    kept = [key for key, total in totals.items() if total]
    return sorted(kept, key=lambda key: (place[key[0]], -base.hits.get(key, 0), str(key[1])))


def _values(found: Column, keys: Sequence[_Key]) -> tuple[Ints, Ints]:
    hits = np.array([found.hits.get(key, 0) for key in keys], np.int64)
    return hits, np.array([found.n.get(problem, 0) for problem, _ in keys], np.int64)


def _column_json(base_u: Ints, n_base_u: Ints, policy_u: Ints, n_policy_u: Ints) -> dict[str, list[int]]:
    mark_u = marks_of(base_u, policy_u, n_base_u, n_policy_u)
    return {"hits": policy_u.tolist(), "n": n_policy_u.tolist(), "marks": mark_u.tolist()}


def _short(problem: Problem) -> str:
    """The start of the question on one line: of a chat, its last message."""
    said = problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1:]
    return cut_text(" ".join(chat_text(said, between_parts=" ").split()), SHORT)
