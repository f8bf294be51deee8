"""The pools of a comparison as the map shows them: a column for each policy, and the cells in which something moved.

A page that carries them has a limit. The cells of the last policy come first, those of problems with units lost or
gained beyond noise before the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offleash.eval.browse.cell import cell_of, rows_by_problem
from offleash.eval.browse.embed import dumped, key
from offleash.eval.browse.grid import LEVELS, MARKS, columns, grid
from offleash.eval.comparison.result import TaskPools

SAMPLES = 200_000
"""Read for the cells of one policy, of both sides."""
CHARACTERS = 8_000_000
"""Of all cells of a task, before compression."""
SIDE_CHARACTERS = 40_000
"""Of the completions on one side of a cell."""


def compared(tasks: Sequence[TaskPools], steps: Mapping[str, int | None]) -> dict[str, Any]:
    """What `browse.embed.embedded` carries: `tasks`, and the grids and cells of each, where a run is a task.

    `steps`: the training step of each policy. Unless all have one, and each its own, the columns are numbered from 1
    and called by the policy's label.
    """
    numbered = dict(zip(steps, steps.values(), strict=True))
    words = {}
    if None in numbered.values() or len(set(numbered.values())) < len(numbered):
        numbered = {label: place for place, label in enumerate(steps, 1)}
        words = {str(place): label for label, place in numbered.items()}
    data: dict[str, Any] = {key("tasks"): [task.task for task in tasks]}
    for task in tasks:
        pools = {int(numbered[label] or 0): pool for label, pool in task.policies.items()}
        base, policies = columns(task.base, task.k), {step: columns(pool, task.k) for step, pool in pools.items()}
        for level in LEVELS:
            found = {step: column[level] for step, column in policies.items()}
            made = grid(level, base[level], found, task.base.problems) | {"words": words}
            data[key("grid", run=task.task, level=level)] = made
        data |= _cells(task, pools, data[key("grid", run=task.task, level="answer")])
    return data


def _cells(task: TaskPools, pools: Mapping[int, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    room, most = CHARACTERS, max(SAMPLES // (2 * task.k), 1)
    problems = {problem.id: problem for problem in task.base.problems}
    for step in sorted(pools, reverse=True):
        ids = [name for name in _moved_first(answers, str(step)) if name in set(pools[step].problem_ids)][:most]
        base, policy = (rows_by_problem(pool, task.k, ids) for pool in (task.base, pools[step]))
        for name in ids:
            found = cell_of(problems[name], base.get(name, []), policy.get(name, []), SIDE_CHARACTERS)
            room -= len(dumped(found))
            if room < 0:
                return made
            made[key("cell", run=task.task, step=str(step), problem=name)] = found
    return made


def _moved_first(answers: Mapping[str, Any], step: str) -> list[str]:
    """Problem ids: with units that moved beyond noise first, then those that perhaps moved, then the rest."""
    worth_of = {"lost": 3, "gained": 3, "perhaps lost": 1, "perhaps gained": 1}
    worth_m = np.array([worth_of.get(name, 0) for name in MARKS])
    worth_p = np.zeros(len(answers["problems"]))
    mark_u = np.frombuffer(answers["steps"][step]["marks"].encode(), np.uint8) - ord("0")
    np.maximum.at(worth_p, [place for place, _ in answers["rows"]], worth_m[mark_u])
    return [answers["problems"][place]["id"] for place in np.argsort(-worth_p, kind="stable")]
