"""Following a run's folder: each checkpoint is pinned, sampled, measured and written down, once, by one watcher.

Nothing is remembered but what lies on disk. A watcher that was killed leaves a pinned checkpoint and a pool with what
it had drawn; the same command finds both and goes on. Watchers share the work through a lock per step.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from offleash.callbacks.report import step_line
from offleash.callbacks.watch.checkpoints import (
    Checkpoint,
    Files,
    chosen,
    files_of,
    find_checkpoints,
    is_settled,
    what_is_missing,
)
from offleash.callbacks.watch.journal import WATCH, Journal, Version
from offleash.callbacks.watch.measure import Base, Probe
from offleash.callbacks.watch.pins import PINNED, Pin, pin, pinned, unpin
from offleash.callbacks.watch.settings import WatchSettings
from offleash.eval.console import say
from offleash.eval.errors import ConfigError, EngineError, PoolError
from offleash.eval.lock import try_hold
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.sample import Sampler

_SETTLING = 2.0


class Watcher:
    """Measures the checkpoints below `folder`."""

    def __init__(self, folder: Path, probe: Probe, journal: Journal, settings: WatchSettings) -> None:
        self.folder, self.probe, self.journal, self.settings = folder, probe, journal, settings
        self.left_out: dict[int, str] = {}
        """Steps that cannot be measured, and why."""
        self._refused: dict[int, Files] = {}
        self._looked: dict[Path, Files] = {}
        self._is_settling = False
        """Whether a checkpoint without a Trainer's state was seen for the first time just now."""
        self._waiting: set[int] = set()

    def run(self) -> None:
        """With `once`, until everything is measured; otherwise indefinitely."""
        if self.settings.once and not find_checkpoints(self.folder):
            raise ConfigError(f"{self.folder} holds no checkpoint: without --once they are waited for")
        self._tell_if_waiting()
        base = self.probe.base()
        self._wait_for_a_run()
        self.journal.begin(base)
        while True:
            if self._measure_next(base):
                continue
            if self.settings.once and not self._is_settling:
                return
            time.sleep(_SETTLING if self.settings.once else self.settings.poll)

    def _wait_for_a_run(self) -> None:
        """Nothing is written into a folder in which a run has yet to start: it would be taken for an earlier run's."""
        out = self.journal.out
        if out.resolve() != self.folder.resolve() or (out / WATCH).is_dir():
            return
        while not find_checkpoints(self.folder):
            time.sleep(self.settings.poll)

    def _tell_if_waiting(self) -> None:
        if not find_checkpoints(self.folder):
            there = "" if self.folder.is_dir() else ", which does not exist yet"
            say(f"offleash: waiting for the first checkpoint in {self.folder}{there}; the base is sampled meanwhile")

    # Which step is next

    def _measure_next(self, base: Base) -> bool:
        """Measure one step; False if there is none that is free."""
        for checkpoint in self._candidates():
            lock = try_hold(self._place(checkpoint.step if checkpoint else 0))
            if lock is None:
                continue
            try:
                if self._measured(checkpoint, base):
                    return True
            finally:
                os.close(lock)
        return False

    def _candidates(self) -> Iterator[Checkpoint | None]:
        """None is step 0, the base itself. What was begun comes first."""
        yield from self._begun()
        found, measured, how = find_checkpoints(self.folder), self.journal.versions(), self.settings
        due = chosen(found, every=how.every, behind=how.behind, order=how.order)
        if 0 not in measured and all(one.step for one in found):
            yield None
        for step in sorted(self._waiting - {one.step for one in found} - measured.keys()):
            say(f"offleash: step {step} was deleted before it was measured: left out")
        self._waiting = {one.step for one in due if one.step not in measured}
        self._is_settling = False
        for checkpoint in due:
            if self._is_new(checkpoint, measured.get(checkpoint.step)):
                yield checkpoint

    def _begun(self) -> Iterator[Checkpoint]:
        for path in sorted((self.journal.out / WATCH).glob(f"step-*/{PINNED}")):
            found = pinned(path.parent)
            if found is not None:
                yield Checkpoint(int(path.parent.name.removeprefix("step-")), found.source)

    def _is_new(self, checkpoint: Checkpoint, version: Version | None) -> bool:
        """Whether it is complete and not measured yet, or holds something else than what was measured."""
        step, path = checkpoint
        files = _files(path)
        if not files or (version and version.files == files) or self._refused.get(step) == files:
            return False
        if reason := _incomplete(path):
            self.left_out[step] = reason
            return False
        if not is_settled(path) and self._looked.get(path) != files:
            self._looked[path], self._is_settling = files, True
            return False
        self.left_out.pop(step, None)
        return True

    # One step

    def _measured(self, checkpoint: Checkpoint | None, base: Base) -> bool:
        """Measure a step whose lock we hold; False if there is nothing to do, or it cannot be."""
        if checkpoint is None:
            return 0 not in self.journal.versions() and self._measure(0, None, base)
        step, version = checkpoint.step, self.journal.versions().get(checkpoint.step)
        try:
            held = pinned(self._place(step)) or self._pin(checkpoint)
            if held is None:
                return False
            if version is not None and version.files == held.files:
                unpin(self._place(step))  # a kill came just before it was removed, or another watcher was faster
                return False
            return self._measure(step, held, base)
        except (ConfigError, EngineError) as error:
            say(f"offleash: WARNING: step {step} is left out: {error}")
            self.left_out[step] = str(error)
            self._refused[step] = _files(checkpoint.path)
            unpin(self._place(step))
            if not any((pool := self.journal.pool_path(step)).glob("samples*")):
                shutil.rmtree(pool, ignore_errors=True)  # a pool without samples cannot be compared
        return False

    def _pin(self, checkpoint: Checkpoint) -> Pin | None:
        """None if it vanished or is being written to."""
        place = self._place(checkpoint.step)
        unpin(place)
        try:
            return pin(checkpoint, place, self.probe.base_source)
        except FileNotFoundError:
            say(f"offleash: step {checkpoint.step}: {checkpoint.path} was deleted before it was pinned: left out")
        except OSError as error:
            raise PoolError(f"cannot pin {checkpoint.path} in {place}: {error.strerror or error}") from error
        return None

    def _measure(self, step: int, held: Pin | None, base: Base) -> bool:
        start = time.perf_counter()
        model = str(held.path) if held else self.probe.base_name
        with closing(self.probe.sampler(step, model, held.source if held else None)) as sampler:
            version = self._version(sampler, held)
            if self._is_known(step, version, base):
                unpin(self._place(step))
                return True
            self._set_aside_other(step, version.weights)
            pool = self.probe.draw(sampler, self.journal.pool_path(step), base)
        metrics, counted = self.probe.metrics(pool, model, base)
        if held is not None and not held.is_unchanged:
            say(f"offleash: step {step}: {held.source} was written to while it was measured: it is measured again")
            set_aside(self.journal.out, pool.path)
            unpin(self._place(step))
            return True
        seconds = time.perf_counter() - start
        metrics = self.journal.add(step, version, metrics, seconds, counted.hits, base)
        unpin(self._place(step))
        say(step_line(step, metrics, self.probe.settings.k))
        return True

    def _version(self, sampler: Sampler, held: Pin | None) -> Version:
        source = str(held.source) if held else self.probe.base_name
        return Version(source, sampler.source.weights, held.files if held else {})

    def _is_known(self, step: int, version: Version, base: Base) -> bool:
        """Whether this very policy was measured. If another one was, it is taken out."""
        before = self.journal.versions().get(step)
        if before is None:
            return False
        if before.weights == version.weights:
            self.journal.touch(step, version, base)
            return True
        say(f"offleash: step {step}: {version.source} holds other weights than were measured: it is measured again")
        self.journal.forget(step, base)
        return False

    def _set_aside_other(self, step: int, weights: str) -> None:
        """Samples of another policy never stay under a step."""
        path = self.journal.pool_path(step)
        if (path / "pool.json").exists() and Pool.open(path).spec.weights != weights:
            set_aside(self.journal.out, path)

    def _place(self, step: int) -> Path:
        return self.journal.out / WATCH / f"step-{step:06d}"


def set_aside(out: Path, pool: Path) -> None:
    """Move a pool out of the way, to where nothing else looks for it."""
    folder = out / WATCH / "replaced"
    folder.mkdir(parents=True, exist_ok=True)
    names = (folder / f"{pool.name}.{number}" for number in range(1, 10_000))
    shutil.move(pool, target := next(name for name in names if not name.exists()))
    say(f"offleash: former samples of {pool.name} are kept in {target}")


def _files(checkpoint: Path) -> Files:
    """{} if it is gone, or cannot be looked at."""
    try:
        return files_of(checkpoint)
    except OSError:
        return {}


def _incomplete(checkpoint: Path) -> str | None:
    try:
        return what_is_missing(checkpoint)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
