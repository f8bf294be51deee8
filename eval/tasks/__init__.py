"""The table of tasks by name; a task of your own is named by its dotted path, `my_module:MyTask`.

Any task of reasoning-gym is `gym/NAME`, its hard setting `gym/NAME/hard`.
"""

import difflib
import inspect
from functools import partial
from importlib import import_module
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.tasks.base import Problem, Status, Task, Verdict, completion_text, prompt_key
from offleash.eval.tasks.benchmarks import BENCHMARKS
from offleash.eval.tasks.rows import Benchmark

__all__ = ["TASKS", "Problem", "Status", "Task", "Verdict", "completion_text", "load_task", "prompt_key"]

TASKS: dict[str, str | Benchmark] = {
    "countdown": "offleash.eval.tasks.countdown:Countdown",
    "gym": "offleash.eval.tasks.gym:Gym",
    **BENCHMARKS,
}


def load_task(name: str, **kwargs: Any) -> Task:
    """The task of that name or dotted path, built with `kwargs`. Its module is imported only now."""
    factory = _find(name)
    try:
        inspect.signature(factory).bind(**kwargs)
    except TypeError as error:
        accepted = ", ".join(inspect.signature(factory).parameters) or "none"
        raise ConfigError(f"task {name!r}: {error}; its arguments are: {accepted}") from None
    task = factory(**kwargs)
    missing = [part for part in ("name", "version", "problems", "verify", "correct_answers") if not hasattr(task, part)]
    if missing:
        raise ConfigError(f"task {name!r} lacks {', '.join(missing)}; see offleash.eval.tasks.base.Task")
    return task


def _find(name: str) -> Any:
    path = TASKS.get(name, name)
    if isinstance(path, Benchmark):
        return path
    if name.startswith("gym/"):
        return partial(import_module("offleash.eval.tasks.gym_levels").gym_task, name)
    module_name, colon, attribute = path.partition(":")
    if not colon:
        close = difflib.get_close_matches(name, TASKS, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the names are: {', '.join(sorted(TASKS))}"
        raise ConfigError(f"no task is called {name!r}; {hint} (a task of your own: my_module:MyTask)")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"task {name!r} cannot be imported: {error}") from error
    if not callable(factory := getattr(module, attribute, None)):
        raise ConfigError(f"task {name!r}: module {module_name} has no class or function {attribute!r}")
    return factory
