"""The monitored runs below TensorBoard's log folder, each with what the tab shows of it.

A run is a folder with `support.json`. Only that folder and the base pool that it names are read: whatever is asked for
is looked up among the steps and problems that were found there, never made into a path, and links that lead out are
refused.
"""

import os
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from offleash.callbacks.summary import HISTORY, read_record
from offleash.eval.browse.cell import cell
from offleash.eval.browse.grid import LEVELS, Column, Level, column, grid
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.pool import Pool

EVENTS = "tensorboard"
"""The folder of the event files inside a run's."""
RESCAN_SECONDS = 5.0
MAX_DEPTH = 6
_SKIPPED = ("pools", "exact", "final", EVENTS, "base-pools", "completions")


class RunNotFound(LookupError):
    """No such run, step or problem."""


class Runs:
    """Runs by the name that TensorBoard shows, found again every few seconds. Safe to use from several threads."""

    def __init__(self, roots: dict[str, Path]) -> None:
        """`roots`: a prefix of the runs' names -> the folder to look in."""
        self.roots = roots
        self._lock = threading.Lock()
        self._found: dict[str, MonitoredRun] = {}
        self._scanned = -RESCAN_SECONDS

    def all(self) -> dict[str, "MonitoredRun"]:
        with self._lock:
            if time.monotonic() - self._scanned >= RESCAN_SECONDS:
                folders = {name: path for prefix, root in self.roots.items() for name, path in _folders(prefix, root)}
                kept = {n: run for n, run in self._found.items() if folders.get(n) == run.folder}
                self._found = {name: kept.get(name) or MonitoredRun(name, path) for name, path in folders.items()}
                self._scanned = time.monotonic()
            return dict(sorted(self._found.items()))

    def get(self, name: str) -> "MonitoredRun":
        try:
            return self.all()[name]
        except KeyError:
            raise RunNotFound(f"no run {name!r}") from None


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
        return [step for step in sorted(self.record()["steps"]) if (self._step_path(step) / "pool.json").is_file()]

    def has_spellings(self) -> bool:
        return self._base().spelled() is not None

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

    def cell(self, step: int, problem_id: str) -> dict[str, Any]:
        """One problem at one step: see `eval.browse.cell`."""
        if step not in self.steps():
            raise RunNotFound(f"run {self.name!r} has no samples of step {step}")
        pool = self._step(step)
        problem = next((problem for problem in pool.problems if problem.id == problem_id), None)
        if problem is None:
            raise RunNotFound(f"run {self.name!r} has no problem {problem_id!r}")
        return {"run": self.name, "step": step, **cell(problem, self._base(), pool, int(self.record()["k"]))}

    def _column(self, pool: Pool, level: Level, ids: tuple[str, ...], k: int | None) -> Column:
        found: Column = self._columns(pool.path, _signature(pool), level, ids, k)
        return found

    def _base(self) -> Pool:
        named = self.record()["base_pool"]
        if not named:
            raise RunNotFound(f"run {self.name!r} has no base pool yet")
        folder = base_pool_folder(self.folder, named)
        return _opened(folder, folder)

    def _step(self, step: int) -> Pool:
        return _opened(self._step_path(step), self.folder)

    def _step_path(self, step: int) -> Path:
        return self.folder / "pools" / f"step-{step:06d}"


def base_pool_folder(run: Path, named: str) -> Path:
    """Where `support.json` says that the base's samples are: relative to the run's folder, or absolute."""
    beside = (run / named).resolve()
    # Records of earlier versions name it relative to the working directory of training, whatever that was.
    former = run.parent / "base-pools" / Path(named).name
    return beside if (beside / "pool.json").is_file() or not former.is_dir() else former.resolve()


def log_roots(logdir: str | None, logdir_spec: str | None) -> dict[str, Path]:
    """The folders that TensorBoard was started with, by the prefix of their runs' names."""
    if logdir_spec:
        pairs = [part.partition(":")[::2] if ":" in part else ("", part) for part in logdir_spec.split(",")]
        return {name: Path(path).expanduser() for name, path in pairs}
    return {"": Path(logdir).expanduser()} if logdir else {}


def _folders(prefix: str, root: Path) -> Iterator[tuple[str, Path]]:
    """(name, folder) of every run below a root; the root may be a run itself, or a run's folder of event files."""
    root = root.absolute()
    if root.name == EVENTS and (root.parent / HISTORY).is_file():
        yield prefix or root.parent.name, root.parent
        return
    for here, below, files in os.walk(root):
        path = Path(here)
        if HISTORY in files:
            inside = path.relative_to(root).as_posix()
            yield "/".join(part for part in (prefix, inside) if part not in ("", ".")) or path.name, path
            below.clear()
        deep = len(path.relative_to(root).parts) >= MAX_DEPTH
        below[:] = [] if deep else [n for n in below if n not in _SKIPPED and not n.startswith((".", "checkpoint-"))]


def _opened(path: Path, within: Path) -> Pool:
    """The pool, if it and its files are inside `within`. Raises RunNotFound otherwise."""
    limit = within.resolve()
    for file in (path, path / "pool.json", path / "problems.parquet", *path.glob("samples-*.parquet")):
        if not file.resolve().is_relative_to(limit):
            raise RunNotFound(f"{file.name} leads out of {within.name}")
    try:
        return Pool.open(path)
    except (ConfigError, PoolError) as error:
        raise RunNotFound(str(error)) from error


def _signature(pool: Pool) -> tuple[tuple[str, int], ...]:
    return tuple((path.name, path.stat().st_size) for path in pool.parts.paths())


def _count(path: Path, signature: object, level: Level, ids: tuple[str, ...], k: int | None) -> Column:
    pool = Pool.open(path)
    counted = pool.hits(k, "spelling" if level == "spelling" else "answer")
    return column(counted, level, ids)
