"""A monitored run, and what the tab shows of it.

Only the run's folder and the base pool that it names are read: whatever is asked for is looked up among the steps and
problems that were found there, never made into a path, and links that lead out are refused.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from offleash.callbacks.metrics import verdict_of
from offleash.callbacks.summary import HISTORY, read_record
from offleash.eval.browse.cell import cell
from offleash.eval.browse.grid import LEVELS, Column, Level, column, grid
from offleash.eval.comparison.run import run_pools
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.manifest import NAME
from offleash.eval.pool.pool import Pool


class RunNotFound(LookupError):
    """No such run, step or problem."""


@lru_cache(maxsize=256)
def monitored(name: str, folder: Path) -> "MonitoredRun":
    """The same object each time: it remembers what it counted."""
    return MonitoredRun(name, folder)


class MonitoredRun:
    """One run. What was counted of a step is kept: a step that was measured again has other files."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._columns = lru_cache(maxsize=4096)(_count)

    def record(self) -> dict[str, Any]:
        """What `support.json` holds; raises RunNotFound while it cannot be read."""
        record = read_record(self.folder)
        if record is None:
            raise RunNotFound(f"{HISTORY} of run {self.name!r} cannot be read")
        return record

    def steps(self) -> list[int]:
        """The measured steps whose samples are there."""
        return [step for step in sorted(self.record()["steps"]) if (self._step_path(step) / NAME).is_file()]

    def described(self) -> dict[str, Any]:
        """As the page lists it: its settings, its metrics at every step, and the verdict in a word."""
        try:
            record = self.record()
        except RunNotFound as error:
            return {"name": self.name, "error": str(error)}
        steps = dict(sorted(record["steps"].items()))
        return {
            "name": self.name,
            "k": record["k"],
            "token_entropy": record["token_entropy"],
            "base": record["base"],
            "steps": {str(step): metrics for step, metrics in steps.items()},
            "words": {str(step): verdict_of(metrics) for step, metrics in steps.items()},
            "sampled": self.steps(),
        }

    def problem_ids(self) -> tuple[str, ...]:
        """Of the last measured step."""
        steps = self.steps()
        return self._step(steps[-1]).problem_ids if steps else ()

    def grid(self, level: str) -> dict[str, Any]:
        """The grid of all steps: see `eval.browse.grid`."""
        if level not in LEVELS:
            raise RunNotFound(f"no level {level!r}; there are {', '.join(LEVELS)}")
        base, steps = self._base(), self.steps()
        if not steps:
            raise RunNotFound(f"run {self.name!r} has no samples")
        problems = self._step(steps[-1]).problems
        ids, k = tuple(problem.id for problem in problems), int(self.record()["k"])
        of_steps = {step: self._column(self._step(step), level, ids, None) for step in steps}
        return grid(level, self._column(base, level, ids, k), of_steps, problems)

    def cell(self, step_text: str, problem_id: str) -> dict[str, Any]:
        """One problem at one step: see `eval.browse.cell`."""
        step = next((step for step in self.steps() if str(step) == step_text), None)
        if step is None:
            raise RunNotFound(f"run {self.name!r} has no samples of step {step_text!r}")
        pool = self._step(step)
        problem = next((problem for problem in pool.problems if problem.id == problem_id), None)
        if problem is None:
            raise RunNotFound(f"run {self.name!r} has no problem {problem_id!r}")
        return {"run": self.name, "step": step, **cell(problem, self._base(), pool, int(self.record()["k"]))}

    def _column(self, pool: Pool, level: Level, ids: tuple[str, ...], k: int | None) -> Column:
        found: Column = self._columns(pool.path, _signature(pool), level, ids, k)
        return found

    def _base(self) -> Pool:
        try:
            folder, _ = run_pools(self.folder)
        except PoolError as error:
            raise RunNotFound(str(error)) from error
        return _opened(folder, folder)

    def _step(self, step: int) -> Pool:
        return _opened(self._step_path(step), self.folder)

    def _step_path(self, step: int) -> Path:
        return self.folder / "pools" / f"step-{step:06d}"


def _opened(path: Path, within: Path) -> Pool:
    """The pool, if it and its files are inside `within`. Raises RunNotFound otherwise."""
    limit = within.resolve()

    def check(files: Iterable[Path]) -> None:
        for file in files:
            if not file.resolve().is_relative_to(limit):
                raise RunNotFound(f"{file.name} leads out of {within.name}")

    check([path, path / NAME])
    try:
        pool = Pool.open(path)
    except (ConfigError, PoolError) as error:
        raise RunNotFound(str(error)) from error
    check([pool.manifest.problem_path(path), *pool.parts.paths()])
    return pool


def _signature(pool: Pool) -> tuple[tuple[str, int], ...]:
    return tuple((path.name, path.stat().st_size) for path in pool.parts.paths())


def _count(path: Path, signature: object, level: Level, ids: tuple[str, ...], k: int | None) -> Column:
    pool = Pool.open(path)
    counted = pool.hits(k, "spelling" if level == "spelling" else "answer")
    return column(counted, level, ids)
