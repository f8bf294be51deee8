"""What a watched run has measured, kept by any number of watchers: `support.json` and the TensorBoard page.

One at a time reads the record, adds its step and writes both. The record comes first: a page that lacks a step, because
a kill came in between, is completed from the pools by the next watcher.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from offleash.callbacks import tags
from offleash.callbacks.counted import count_pool
from offleash.callbacks.report import check_same_base, check_same_samples, record_of
from offleash.callbacks.summary import HISTORY, read_record, write_record
from offleash.callbacks.watch.checkpoints import Files
from offleash.callbacks.watch.measure import Base
from offleash.callbacks.watch.page import Page
from offleash.eval.errors import ConfigError
from offleash.eval.lock import LOCK, awaited
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.pool import Pool

WATCH, POOLS, EVENTS = "watch", "pools", "tensorboard"


class Version(NamedTuple):
    """Which policy a step was measured on."""

    source: str
    weights: str
    """Their fingerprint."""
    files: Files
    """Of the checkpoint, when it was pinned; {} for the base itself."""


class Journal:
    """Of the steps measured in the folder `out`. Raises ConfigError if a run's own monitor measures there."""

    def __init__(self, out: Path, k: int, temperature: float) -> None:
        self.out, self.k, self.temperature = out, k, temperature
        self.page = Page(out / EVENTS / WATCH, k, temperature)
        check_own(out)

    def pool_path(self, step: int) -> Path:
        return self.out / POOLS / f"step-{step:06d}"

    def versions(self) -> dict[int, Version]:
        """The policies that were measured, by step."""
        steps = self._read().get(WATCH, {})
        return {int(step): Version(**version) for step, version in steps.items()}

    def steps(self) -> dict[int, dict[str, float]]:
        return dict(self._read().get("steps", {}))

    def record(self) -> dict[str, Any]:
        return self._read()

    def begin(self, base: Base) -> None:
        """Check that the steps so far were measured against this very base; complete the page."""
        with self._locked() as record:
            check_same_base(record, self.out, base.pool.path.name, base.pool.spec)
            check_same_samples(record, self.out, base.pool.path, base.counted)
            steps = record.get("steps", {})
            if steps and not self.page.is_of(steps):
                self._show(base, steps)

    def add(
        self, step: int, version: Version, metrics: Mapping[str, float], seconds: float, hits: Hits, base: Base
    ) -> dict[str, float]:
        """Add a measured step; its metrics, with the time that all took so far."""
        with self._locked() as record:
            steps, versions = dict(record.get("steps", {})), dict(record.get(WATCH, {}))
            total = seconds + sum(found[tags.SECONDS.tag] for number, found in steps.items() if number != step)
            steps[step] = {**metrics, tags.SECONDS.tag: seconds, tags.SECONDS_TOTAL.tag: total}
            versions[str(step)] = version._asdict()
            self._write(base, steps, versions)
            self._show(base, steps, {step: hits})
        return steps[step]

    def touch(self, step: int, version: Version, base: Base) -> None:
        """The same policy in files that changed: remember these files."""
        with self._locked() as record:
            self._write(base, record["steps"], {**record[WATCH], str(step): version._asdict()})

    def forget(self, step: int, base: Base) -> None:
        """Take a step out: its checkpoint holds another policy now."""
        with self._locked() as record:
            steps = {number: found for number, found in record["steps"].items() if number != step}
            versions = {name: version for name, version in record[WATCH].items() if name != str(step)}
            self._write(base, steps, versions)
            self._show(base, steps)

    def _write(self, base: Base, steps: Mapping[int, Any], versions: Mapping[str, Any]) -> None:
        record = record_of(self.out, self.k, self.temperature, base.pool, base.counted, base.metrics, steps)
        write_record(self.out, {**record, WATCH: versions})

    def _show(self, base: Base, steps: Mapping[int, Any], known: Mapping[int, Hits] | None = None) -> None:
        def hits_of(step: int) -> Hits:
            return (known or {}).get(step) or count_pool(Pool.open(self.pool_path(step))).hits

        self.page.write(base.pool.spec.task, base.metrics, base.counted.hits, steps, hits_of)

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        with awaited(self.out / WATCH, LOCK):
            yield self._read()

    def _read(self) -> dict[str, Any]:
        record = read_record(self.out)
        if record is None and (self.out / HISTORY).exists():
            raise ConfigError(f"{self.out / HISTORY} cannot be read: restore it, or choose another --out")
        _check_written_by_watchers(record or {}, self.out)
        return record or {}


def check_own(out: Path) -> None:
    """Raises ConfigError if a folder holds the measurements of a run's own monitor."""
    _check_written_by_watchers(read_record(out) or {}, out)
    if any((out / POOLS).glob("step-*")) and not (out / WATCH).is_dir():
        raise _not_ours(out)


def _check_written_by_watchers(record: Mapping[str, Any], out: Path) -> None:
    versions = record.get(WATCH) if record else {}
    if not isinstance(versions, dict) or not all(
        version.keys() == set(Version._fields) for version in versions.values()
    ):
        raise _not_ours(out)


def _not_ours(out: Path) -> ConfigError:
    return ConfigError(f"{out} holds what the run's own monitor measured: choose another folder with --out")
