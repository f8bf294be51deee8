"""Units lost and gained, with a completion of each side to read: where a number in a report can be looked at.

Completions are by far the largest column of a pool, so they are read only from the parts that hold a wanted sample:
a narrow look at (problem, answer, correct) finds it, part by part, and stops when nothing is wanted any more.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offleash.eval.comparison.align import Aligned, Arm
from offleash.eval.comparison.changes import Change, unit_changes
from offleash.eval.comparison.result import Example, Moved
from offleash.eval.pool.pool import Pool
from offleash.eval.problem import chat_text, cut_text

TEXT_LIMIT = 2000


class _Unit(NamedTuple):
    """A unit that only one side reached; `answer` is None if any correct answer hits it."""

    task: Aligned
    change: Change
    answer: str | None
    whole_problem: bool
    sure: bool


class _Want(NamedTuple):
    """A sample to find: one that hits the answer (None: any correct one), or the first draw."""

    problem_id: str
    answer: str | None
    hit: bool


def moved(tasks: Sequence[Aligned], sure: Sequence[int], *, lost: bool, limit: int) -> Moved:
    """The units that only the base reached (`lost`), or only the policy: all counted, the first `limit` shown.

    `sure` are the units beyond chance, by their index when the units of all tasks stand one after another.
    """
    starts = np.cumsum([0, *(len(task.unit_problem) for task in tasks)]).tolist()
    units = [
        unit
        for task, start in zip(tasks, starts, strict=False)
        for unit in _units(task, {u - start for u in sure}, lost)
    ]
    units.sort(
        key=lambda unit: (not unit.sure, not unit.whole_problem, -unit.change.base_hits - unit.change.policy_hits)
    )
    problems = {(unit.task.task, unit.change.problem_id) for unit in units if unit.whole_problem}
    shown = units[:limit]
    examples: dict[int, Example] = {}
    for task in tasks:
        mine = [i for i, unit in enumerate(shown) if unit.task is task]
        made = _examples(task, [shown[i] for i in mine], lost)
        examples |= dict(zip(mine, made, strict=True))
    return Moved(len(units), len(problems), tuple(examples[i] for i in range(len(shown))))


def _units(task: Aligned, sure: Collection[int], lost: bool) -> list[_Unit]:
    base, policy = task.base.hits, task.policy.hits
    there = policy if lost else base
    return [
        _Unit(task, change, base.unit_answer[u], int(there.correct_p[base.unit_problem[u]]) == 0, u in sure)
        for u, change in unit_changes(base, policy).items()
        if bool(change.base_hits) == lost
    ]


def _examples(task: Aligned, units: Sequence[_Unit], lost: bool) -> list[Example]:
    hits = [_Want(unit.change.problem_id, unit.answer, True) for unit in units]
    misses = [_Want(unit.change.problem_id, None, False) for unit in units]
    base_wants, policy_wants = (hits, misses) if lost else (misses, hits)
    base = _texts(task.base, set(base_wants))
    policy = _texts(task.policy, set(policy_wants))
    problems = {problem.id: problem for problem in task.base.pool.problems}
    return [
        Example(
            task=task.task,
            change=unit.change,
            whole_problem=unit.whole_problem,
            sure=unit.sure,
            prompt=cut_text(chat_text(problem.prompt, between="\n", between_parts=" ", roles=True), TEXT_LIMIT),
            gold=cut_text(problem.gold, TEXT_LIMIT),
            base_text=base.get(of_base),
            policy_text=policy.get(of_policy),
        )
        for unit, of_base, of_policy in zip(units, base_wants, policy_wants, strict=True)
        for problem in [problems[unit.change.problem_id]]
    ]


def _texts(arm: Arm, wants: Collection[_Want]) -> dict[_Want, str | None]:
    """A completion for each want, cut to a readable length; None where the pool has no text for it."""
    pool = arm.pool
    limit_of = dict(zip(pool.problem_ids, arm.limit_p.tolist(), strict=True))
    found: dict[_Want, str | None] = {}
    for path in pool.parts.paths():
        left = [want for want in wants if want not in found]
        if not left:
            break
        rows = _rows(path, pool, limit_of, left)
        texts = _completions(path, pool, sorted(rows.values()))
        found |= {want: texts[row] for want, row in rows.items()}
    return found


def _rows(path: Path, pool: Pool, limit_of: dict[str, int], wants: Sequence[_Want]) -> dict[_Want, int]:
    """Where in a part the wanted samples are, those that it has."""
    ids = pa.array(sorted({want.problem_id for want in wants}))
    by_problem: dict[str, list[_Want]] = {}
    for want in wants:
        by_problem.setdefault(want.problem_id, []).append(want)
    rows: dict[_Want, int] = {}
    start = 0
    for batch in pool.parts.read(path, ["problem_id", "index", "answer", "correct"]):
        problem_id = batch.column("problem_id")
        place = pc.is_in(problem_id.dictionary, value_set=ids.cast(problem_id.dictionary.type))
        wanted = place.to_numpy(zero_copy_only=False)[problem_id.indices.to_numpy(zero_copy_only=False)]
        at = np.flatnonzero(wanted)
        for row, sample in zip((at + start).tolist(), batch.take(pa.array(at)).to_pylist(), strict=True):
            if sample["index"] >= limit_of[sample["problem_id"]]:
                continue
            for want in by_problem[sample["problem_id"]]:
                if want not in rows and _fits(want, sample):
                    rows[want] = row
        start += batch.num_rows
    return rows


def _fits(want: _Want, sample: dict[str, Any]) -> bool:
    return not want.hit or (sample["correct"] and want.answer in (None, sample["answer"]))


def _completions(path: Path, pool: Pool, rows: Sequence[int]) -> dict[int, str | None]:
    texts: dict[int, str | None] = {}
    start = 0
    for batch in pool.parts.read(path, ["completion"]) if rows else ():
        end = start + batch.num_rows
        for row in rows:
            if start <= row < end:
                text = batch.column("completion")[row - start].as_py()
                texts[row] = None if text is None else cut_text(text, TEXT_LIMIT)
        start = end
        if start > rows[-1]:
            break
    return texts
