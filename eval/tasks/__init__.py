"""The table of tasks by name; a task of your own is named by its dotted path, `my_module:MyTask`.

`data` reads a file or dataset of your own, whose columns its arguments name.
Any task of reasoning-gym is `gym/NAME`, its hard setting `gym/NAME/hard`.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Task
from offleash.eval.registry import build, check_name, find
from offleash.eval.tasks.benchmarks import BENCHMARKS
from offleash.eval.tasks.identity import add_code_version
from offleash.eval.tasks.loading import Benchmark

TASKS: dict[str, str | Benchmark] = {
    "change": "offleash.eval.tasks.change:Change",
    "colouring": "offleash.eval.tasks.colouring:Colouring",
    "countdown": "offleash.eval.tasks.countdown:Countdown",
    "data": "offleash.eval.tasks.data_task:data_task",
    "gym": "offleash.eval.tasks.gym.tasks:Gym",
    **BENCHMARKS,
}


def load_task(name: str, /, **kwargs: Any) -> Task:
    """Load the task of that name, or of a dotted path `my_module:MyTask`, with `kwargs` as its arguments.

    Loading a task of your own imports its module, which runs its code. Only a class with the methods `verify` and
    `correct_answers` is called. The fingerprint of its code is added to its `version`.

    `offleash tasks` lists the names and their arguments. Most benchmarks are downloaded from the hub, or read from
    `path=...`; `countdown`, `colouring`, `change` and the `gym/` tasks are generated. `data` is a benchmark of your
    own: `load_task("data", path="bench.jsonl", question="problem", gold="answer", verifier="math")`.

    >>> from offleash.eval import load_task
    >>> task = load_task("countdown", split="probe", n=4)
    >>> task.name, len(task.problems)
    ('countdown', 4)
    >>> problem = task.problems[0]
    >>> [verdict.correct for verdict in task.verify([problem, problem], [problem.gold, "1 + 1"])]
    [True, False]
    """
    task: Task = build("task", name, _find(name), **kwargs)
    missing = [part for part in ("name", "version", "problems", "verify", "correct_answers") if not hasattr(task, part)]
    if missing:
        raise ConfigError(f"task {name!r} lacks {', '.join(missing)}; see offleash.eval.problem.Task")
    add_code_version(task)
    return task


def checks_golds(name: str) -> bool:
    """Whether loading this task verifies its golds, as far as that is quick; `golds="unchecked"` turns it off."""
    return name == "data" or isinstance(TASKS.get(name), Benchmark)


def check_task_name(name: str) -> None:
    """Raise ConfigError for a name that stands for no task. Imports nothing."""
    if not name.startswith("gym/"):
        check_name("task", name, TASKS)


def _find(name: str) -> Callable[..., Any]:
    entry = TASKS.get(name, name)
    if isinstance(entry, Benchmark):
        return entry
    if name.startswith("gym/"):
        return partial(import_module("offleash.eval.tasks.gym.levels").gym_task, name)
    table = {known: path if isinstance(path, str) else "" for known, path in TASKS.items()}
    return find("task", name, table, ("verify", "correct_answers"))
