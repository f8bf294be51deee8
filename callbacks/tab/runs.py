"""A monitored run, and what the tab shows of it.

Only the run's folder and the base pool that it names are read: whatever is asked for is looked up among the steps and
problems that were found there, never made into a path, and links that lead out are refused.

What was read is kept for as long as the files are the same (name, size, time): a live run costs its newest step. A step
is counted once for all levels, and a request counts for a second at most: the page asks again for the rest.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from offleash.callbacks import tags
from offleash.callbacks.metrics import verdict_of
from offleash.callbacks.summary import HISTORY, read_record
from offleash.eval.browse.cell import Row, cell, cell_of, rows_by_problem
from offleash.eval.browse.grid import LEVELS, Column, Level, columns, grid
from offleash.eval.comparison.run import run_pools
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.manifest import NAME
from offleash.eval.pool.pool import Pool

FIRST_SECONDS, COUNT_SECONDS = 0.1, 1.5
"""How long a request for a grid counts steps before it answers with what it has: the first, and those after it."""
POOLS = 32
"""How many pools of steps a run keeps open."""
SHOWN = {
    metric.tag
    for metric in (
        *(getattr(tags.UNIT, f"{name}{part}") for name in ("", "expected_") for part in ("shrunk", "expanded")),
        *(getattr(tags.UNIT, name) for name in ("preserved", "shrunk_sure", "expanded_sure", "nscr")),
        *(getattr(tags.UNIT, f"p_{part}_strength") for part in ("shrunk", "expanded")),
        *(getattr(tags.PROBLEM, name) for name in ("shrunk", "expanded")),
        tags.LEASH.nscr,
        tags.ANSWER_ENTROPY,
    )
}
SHOWN_PREFIXES = tuple(metric.tag.partition("{")[0] for metric in (tags.PASS_AT_K, tags.LEASH_PASS_AT_K))

Stamp = tuple[Any, ...]
"""Of files: name, size, time of the last change, number on disk."""


class RunNotFound(LookupError):
    """No such run, step or problem."""


@lru_cache(maxsize=256)
def monitored(name: str, folder: Path) -> "MonitoredRun":
    """The same object each time: it remembers what it counted."""
    return MonitoredRun(name, folder)


class MonitoredRun:
    """One run. Safe to use from several threads."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._opening, self._counting = threading.Lock(), threading.Lock()
        self._record: tuple[Stamp, dict[str, Any] | None] = ((), None)
        self._pools: dict[Path, tuple[Stamp, Pool]] = {}
        self._counted: dict[Path, tuple[Stamp, dict[Level, Column]]] = {}
        self._grids: dict[str, tuple[Stamp, bytes]] = {}
        self._noise: tuple[Stamp, dict[str, Any]] = ((), {})
        self._base_folder: tuple[Stamp, Path] | None = None

    def record(self) -> dict[str, Any]:
        """What `support.json` holds; raises RunNotFound while it cannot be read."""
        stamp = self._record_stamp()
        if self._record[0] != stamp or self._record[1] is None:
            self._record = stamp, read_record(self.folder)
        if self._record[1] is None:
            raise RunNotFound(f"{HISTORY} of run {self.name!r} cannot be read")
        return self._record[1]

    def steps(self) -> list[int]:
        """The measured steps whose samples are there."""
        return [step for step in sorted(self.record()["steps"]) if (self._step_path(step) / NAME).is_file()]

    def described(self) -> dict[str, Any]:
        """As the page lists it: its settings, what the page shows of its metrics, and the verdict in a word."""
        try:
            record = self.record()
        except RunNotFound as error:
            return {"name": self.name, "error": str(error)}
        steps = dict(sorted(record["steps"].items()))
        shown = SHOWN | {record["token_entropy"]}
        return {
            "name": self.name,
            "stamp": "-".join(map(str, self._record_stamp())),
            "k": record["k"],
            "token_entropy": record["token_entropy"],
            "base": _only(record["base"], shown),
            "steps": {str(step): _only(metrics, shown) for step, metrics in steps.items()},
            "words": {str(step): verdict_of(metrics) for step, metrics in steps.items()},
            "sampled": self.steps(),
        }

    def noise(self) -> dict[str, Any]:
        """Between which counts an unchanged model would lose and gain units, 19 times in 20 (`stats.bands`)."""
        from offleash.eval.stats.bands import noise_bands

        pool, k = self._base(), int(self.record()["k"])
        if pool.spec.plan.successes is not None:
            return {"error": "no band of noise: the plan stops early"}
        ids = self.problem_ids()
        stamp = (k, ids, _stamp(pool.path))
        if self._noise[0] != stamp:
            hits = pool.only(ids, k).hits()
            bands = noise_bands(hits.unit_hits, hits.n_p[hits.unit_problem], k, problem_u=hits.unit_problem)
            edges = {"lost": bands["shrunk"], "gained": bands["expanded"], "nscr": bands["nscr"]}
            self._noise = stamp, {name: [band.low, band.high] for name, band in edges.items()}
        return self._noise[1]

    def problem_ids(self) -> tuple[str, ...]:
        """Of the last measured step."""
        steps = self.steps()
        return self._step(steps[-1]).problem_ids if steps else ()

    def grid(self, level: str, seconds: float | None = None) -> bytes:
        """The grid of the steps counted so far, as JSON: see `eval.browse.grid`.

        Steps are counted for so many seconds (default: as above); `waiting` are those left, `failed` those that cannot
        be read, with why.
        """
        if level not in LEVELS:
            raise RunNotFound(f"no level {level!r}; there are {', '.join(LEVELS)}")
        steps, k = self.steps(), int(self.record()["k"])
        if not steps:
            raise RunNotFound(f"run {self.name!r} has no samples")
        with self._counting:
            seconds = (COUNT_SECONDS if self._counted else FIRST_SECONDS) if seconds is None else seconds
            base = self._columns(self._base(), k)[level]
            found, failed = self._count(steps, level, seconds)
            if not found:
                raise RunNotFound(next(iter(failed.values())))
            waiting = [step for step in steps if step not in found and step not in failed]
            stamp = (self._counted[self._base().path][0], *(self._counted[self._step_path(step)][0] for step in found))
            if self._grids.get(level, ((), b""))[0] != (stamp, tuple(waiting), tuple(failed)):
                problems = self._step(max(found)).problems
                made = grid(level, base, found, problems) | {"waiting": waiting, "failed": failed}
                text = json.dumps(made, allow_nan=False).encode()
                self._grids[level] = (stamp, tuple(waiting), tuple(failed)), text
            return self._grids[level][1]

    def cell(self, step_text: str, problem_id: str) -> dict[str, Any]:
        """One problem at one step: see `eval.browse.cell`."""
        step = next((step for step in self.record()["steps"] if str(step) == step_text), None)
        if step is None or not (self._step_path(step) / NAME).is_file():
            raise RunNotFound(f"run {self.name!r} has no samples of step {step_text!r}")
        pool = self._step(step)
        problem = next((problem for problem in pool.problems if problem.id == problem_id), None)
        if problem is None:
            raise RunNotFound(f"run {self.name!r} has no problem {problem_id!r}")
        return {"run": self.name, "step": step, **cell(problem, self._base(), pool, int(self.record()["k"]))}

    def cells(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """(step, problem, cell) of all, the last steps first; each pool is read once."""
        k, base_pool = int(self.record()["k"]), self._base()
        base: dict[str, list[Row]] | None = None
        for step in reversed(self.steps()):
            pool = self._step(step)
            base = rows_by_problem(base_pool, k, pool.problem_ids) if base is None else base
            policy = rows_by_problem(pool)
            for problem in pool.problems:
                made = cell_of(problem, base.get(problem.id, []), policy.get(problem.id, []))
                yield step, problem.id, {"run": self.name, "step": step, **made}

    def _count(self, steps: list[int], level: Level, seconds: float) -> tuple[dict[int, Column], dict[int, str]]:
        """The steps that are counted, after counting more of them for a while; and those that cannot be read."""
        found, failed, fresh = {}, {}, 0
        # By the processor's clock: a busy machine must not starve it. By the other one as well, for slow disks.
        worked, until = time.thread_time() + seconds, time.monotonic() + 4 * seconds
        for i in sorted(range(len(steps)), key=_evenly, reverse=True):
            step = steps[-1 - i]
            known = self._counted.get(path := self._step_path(step))
            try:
                if known is not None and known[0] == (_stamp(path), None):
                    found[step] = known[1][level]
                elif not fresh or (time.thread_time() < worked and time.monotonic() < until):
                    fresh += 1
                    found[step] = self._columns(self._step(step), None)[level]
            except (RunNotFound, PoolError, OSError) as error:
                failed[step] = str(error)
        return dict(sorted(found.items())), failed

    def _columns(self, pool: Pool, k: int | None) -> dict[Level, Column]:
        stamp = (_stamp(pool.path), k)
        if pool.path not in self._counted or self._counted[pool.path][0] != stamp:
            self._counted[pool.path] = stamp, columns(pool, k)
        return self._counted[pool.path][1]

    def _base(self) -> Pool:
        stamp = self._record_stamp()
        if self._base_folder is None or self._base_folder[0] != stamp:
            try:
                self._base_folder = stamp, run_pools(self.folder)[0]
            except PoolError as error:
                raise RunNotFound(str(error)) from error
        return self._opened(self._base_folder[1], self._base_folder[1])

    def _step(self, step: int) -> Pool:
        return self._opened(self._step_path(step), self.folder)

    def _step_path(self, step: int) -> Path:
        return self.folder / "pools" / f"step-{step:06d}"

    def _record_stamp(self) -> Stamp:
        try:
            found = (self.folder / HISTORY).stat()
        except OSError:
            return ()
        return found.st_size, found.st_mtime_ns, found.st_ino

    def _opened(self, path: Path, within: Path) -> Pool:
        """The pool, if it and its files are inside `within`. Raises RunNotFound otherwise."""
        _check_inside(path, within)
        stamp = _stamp(path)
        with self._opening:
            known = self._pools.pop(path, None)
            if known is None or known[0] != stamp:
                try:
                    known = stamp, Pool.open(path)
                except (ConfigError, PoolError) as error:
                    raise RunNotFound(str(error)) from error
                for _, other in self._pools.values():
                    known[1].share_problems(other)
            while len(self._pools) >= POOLS:
                del self._pools[next(iter(self._pools))]
            self._pools[path] = known
            return known[1]


def _only(metrics: dict[str, float], shown: set[str]) -> dict[str, float]:
    return {tag: value for tag, value in metrics.items() if tag in shown or tag.startswith(SHOWN_PREFIXES)}


def _evenly(i: int) -> tuple[float, int]:
    """A key that puts 0 first, and then spreads evenly: ever smaller powers of two between."""
    return (float("inf") if i == 0 else float(i & -i)), -i


def _stamp(folder: Path) -> Stamp:
    """Of the files of a pool; another one whenever any of them is."""
    try:
        with os.scandir(folder) as entries:
            files = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith((".parquet", ".json"))]
    except OSError as error:
        raise RunNotFound(f"{folder.name} cannot be read: {error.strerror}") from error
    return tuple(sorted((name, found.st_size, found.st_mtime_ns, found.st_ino) for name, found in files))


def _check_inside(folder: Path, within: Path) -> None:
    """Raises RunNotFound if a pool's folder, or a file in it, is a link that leads out of `within`."""
    limit, home = within.resolve(), folder.resolve()
    try:
        with os.scandir(folder) as entries:
            links = [folder / entry.name for entry in entries if entry.is_symlink()]
    except OSError as error:
        raise RunNotFound(f"{folder.name} cannot be read: {error.strerror}") from error
    for path in (home, *(link.resolve() for link in links)):
        if not path.is_relative_to(limit):
            raise RunNotFound(f"{path.name} leads out of {within.name}")
