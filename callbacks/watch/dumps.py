"""Following another trainer's dumps: each file of samples is a step, imported as a pool and measured against a base.

verl's `validation_data_dir`, traces of prime-rl, TRL's logged completions and so on: what their rows mean is
`offleash.eval.convert`'s business. Here is which files there are, and when one is complete.
"""

import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from offleash.callbacks import tags
from offleash.callbacks.counted import count_base, count_pool, pool_metrics, step_metrics
from offleash.callbacks.report import step_line
from offleash.callbacks.watch.checkpoints import Checkpoint, Files, by_step, chosen, is_own
from offleash.callbacks.watch.journal import POOLS, WATCH, Journal, Version, check_own
from offleash.callbacks.watch.measure import Base
from offleash.callbacks.watch.settings import WatchSettings
from offleash.callbacks.watch.watcher import set_aside
from offleash.eval.comparison.sides import check_comparable
from offleash.eval.console import say
from offleash.eval.convert.importer import import_samples
from offleash.eval.errors import ConfigError, OffleashError
from offleash.eval.files import remove_leftovers
from offleash.eval.lock import try_hold
from offleash.eval.pool.pool import Pool
from offleash.eval.problem import Task

SUFFIXES = (".jsonl", ".parquet")


def find_dumps(folder: Path) -> list[Checkpoint]:
    """The files of samples below a folder whose path names a step, oldest first."""
    return by_step(folder, _files_below(folder))


def _files_below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_own(name))
        yield from (Path(root, name) for name in sorted(names) if name.endswith(SUFFIXES) and not name.startswith("."))


def is_written(path: Path) -> bool:
    """Whether a file ends as a complete one does: JSONL with a line break, parquet with its mark."""
    mark = b"PAR1" if path.suffix == ".parquet" else b"\n"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(mark)))
        return file.read() == mark


def import_dump(dump: Checkpoint, pool: Path, task: Task | None) -> Pool:
    """A file of another trainer as a pool, complete or not at all; judged by the task, or as the file says."""
    pool.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(pool.parent)
    import_samples(dump.path, pool, task=task, model=str(dump.path))
    return Pool.open(pool)


class DumpWatcher:
    """Measures the dumps below `folder` against a pool, or against the first of them if `base` is None."""

    def __init__(self, folder: Path, out: Path, settings: WatchSettings, task: Task | None, base: Path | None) -> None:
        check_own(out)
        self.folder, self.out, self.settings, self.task, self.base = folder, out, settings, task, base
        self.left_out: dict[int, str] = {}
        self._looked: dict[Path, Files] = {}
        self._refused: dict[int, Files] = {}
        self._is_settling = False

    def run(self) -> Journal:
        """With `once`, until everything is measured; otherwise indefinitely."""
        base = self._base()
        journal = Journal(self.out, base.counted.k, _temperature(base.pool))
        journal.begin(base)
        while True:
            if any(self._measured(dump, journal, base) for dump in self._candidates(journal, base)):
                continue
            if self.settings.once and not self._is_settling:
                return journal
            time.sleep(min(self.settings.poll, 2.0) if self.settings.once else self.settings.poll)

    def _base(self) -> Base:
        if self.base is not None:
            pool = Pool.open(self.base)
        else:
            first = self._first()
            (self.out / WATCH).mkdir(parents=True, exist_ok=True)  # says whose pools these are
            path = self.out / POOLS / f"step-{first.step:06d}"
            pool = Pool.open(path) if (path / "pool.json").exists() else import_dump(first, path, self.task)
        counted = count_base(pool)
        return Base(pool, counted, pool_metrics(counted, _temperature(pool)))

    def _first(self) -> Checkpoint:
        while True:
            found = find_dumps(self.folder)
            if found and self._is_complete(found[0].path):
                return found[0]
            if self.settings.once and not found:
                raise ConfigError(f"{self.folder} holds no file of samples whose name or folder names a step")
            time.sleep(min(self.settings.poll, 2.0))

    def _candidates(self, journal: Journal, base: Base) -> list[Checkpoint]:
        """Complete, and not measured as they are now."""
        how, measured = self.settings, journal.versions()
        found = [dump for dump in find_dumps(self.folder) if journal.pool_path(dump.step) != base.pool.path]
        due = [dump for dump in found if dump.step % how.every == 0]
        self._is_settling = False
        new = []
        for dump in chosen(due, every=1, behind=how.behind, order=how.order):
            files, version = _state(dump.path), measured.get(dump.step)
            known = (version is not None and version.files == files) or self._refused.get(dump.step) == files
            if files and not known and self._is_complete(dump.path):
                new.append(dump)
        return new

    def _is_complete(self, path: Path) -> bool:
        """Twice the same, and with an end unless nobody writes any more: a trainer may write a file line by line."""
        files, before = _state(path), self._looked.get(path)
        self._looked[path] = files
        self._is_settling |= files != before
        return bool(files) and files == before and (self.settings.once or is_written(path))

    def _measured(self, dump: Checkpoint, journal: Journal, base: Base) -> bool:
        lock = try_hold(self.out / WATCH / f"step-{dump.step:06d}")
        if lock is None:
            return False
        try:
            self._measure(dump, journal, base)
        except OffleashError as error:
            say(f"offleash: WARNING: step {dump.step} is left out: {error}")
            self.left_out[dump.step], self._refused[dump.step] = str(error), _state(dump.path)
            return False
        finally:
            os.close(lock)
        return True

    def _measure(self, dump: Checkpoint, journal: Journal, base: Base) -> None:
        start, step, path = time.perf_counter(), dump.step, journal.pool_path(dump.step)
        files, version = _state(dump.path), journal.versions().get(dump.step)
        if version is not None and version.files == files:
            return  # another watcher was faster
        if version is not None:
            say(f"offleash: step {step}: {dump.path} is not the file that was measured: it is measured again")
            journal.forget(step, base)
        if path.exists():
            set_aside(self.out, path)
        pool = import_dump(dump, path, self.task)
        if _state(dump.path) != files:
            shutil.rmtree(path)
            return
        try:
            check_comparable(base.pool, pool)
            counted = count_pool(pool)
            metrics = step_metrics(base.counted, counted, _temperature(pool)) | {tags.MONITOR_FAILED.tag: 0.0}
        except OffleashError:
            shutil.rmtree(path)  # the file has it all
            raise
        if pool.spec.temperature < 0:
            metrics[tags.token_entropy(1.0).tag] = math.nan  # of unknown temperature
        made = Version(str(dump.path), pool.spec.weights, files)
        metrics = journal.add(step, made, metrics, time.perf_counter() - start, counted.hits, base)
        self.left_out.pop(step, None)
        say(step_line(step, metrics, counted.k))


def _temperature(pool: Pool) -> float:
    return pool.spec.temperature if pool.spec.temperature > 0 else 1.0


def _state(path: Path) -> Files:
    """{} if it is gone."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return {}
    return {path.name: [stat.st_size, stat.st_mtime_ns]}
