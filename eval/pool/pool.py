"""A pool: every sample of one model on one task with one sampling configuration, in a folder.

`pool.json` holds the settings (written last: a folder without it is not a pool yet), `problems.parquet` the problems,
and `samples-*.parquet` are append-only parts. Any number of processes may append at once; a crash loses at most the
part being written, and `missing` tells what is left to sample. (Two that sample would draw the same: `pool.sample` lets
in one at a time.)

A pool grows: asked for more samples or more problems than it holds, it keeps what it has. Asked for less, it is looked
at through a `Pool` that shows exactly what was asked for, whatever else the folder holds or will hold.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from offleash.eval.errors import PoolError
from offleash.eval.files import remove_leftovers
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.lock import try_hold
from offleash.eval.pool import manifest
from offleash.eval.pool.counts import (
    TALLY_COLUMNS,
    Flags,
    Hits,
    Ints,
    Tally,
    count_hits,
    tally,
)
from offleash.eval.pool.manifest import FORMAT as FORMAT
from offleash.eval.pool.manifest import NAME, Manifest
from offleash.eval.pool.rows import SCHEMA, Sample, rows_table
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.pool.spellings import SPELLING_COLUMNS, Level, Spelled, count_spellings
from offleash.eval.pool.store import Answers, Chunk, Draws, Parts, Seen
from offleash.eval.problem import Problem
from offleash.eval.storage import path_at

_NOTE_ROWS = 5_000_000
_FORMER_NAMES = {"extracted_by": "step"}  # of columns, in parts of format 1
_LATER = ("spelling", "truncated")  # columns that parts of formats 1 and 2, and of 1 to 3, do not have


class Pool:
    """Every sample of one model on one task with one sampling configuration, and what to count of them.

    `sample_pool` makes one from a model; `open` opens it again. Columns of `read`: see `Sample`.

    >>> from offleash.eval import Pool
    >>> from offleash.eval.pool.testing import make_pool
    >>> _ = make_pool("pools/base", hits=[3, 0], k=4)
    >>> pool = Pool.open("pools/base")
    >>> pool.spec.task, pool.spec.k, pool.is_complete
    ('sums', 4, True)
    >>> pool.hits().correct_p.tolist()
    [3, 0]
    >>> pool.read(["problem_id", "index", "correct"], limit=1).to_pylist()
    [{'problem_id': 'p0', 'index': 0, 'correct': True}, {'problem_id': 'p1', 'index': 0, 'correct': False}]
    """

    def __init__(self, path: Path, content: Manifest, spec: PoolSpec, problem_ids: tuple[str, ...] | None) -> None:
        self.path, self.manifest, self._problem_ids = path, content, problem_ids
        self.spec = spec
        """As `pool.json` has it, but for problems and k: they are of what this object shows."""
        self.parts = parts_of(path, content)

    @classmethod
    def create(
        cls, path: str | Path, spec: PoolSpec, problems: Sequence[Problem], answers: Answers | None = None
    ) -> "Pool":
        """A new, empty pool. `answers`: the correct answer classes of each problem, None where they are not listed."""
        folder = path_at(path)
        if not _make(folder, spec, problems, answers):
            raise PoolError(f"{folder} is already a pool: open it, or choose another folder")
        return cls.open(folder)

    @classmethod
    def open(cls, path: str | Path) -> "Pool":
        """An existing pool, all of it."""
        folder = path_at(path)
        found = Manifest.read(folder)
        return cls(folder, found, found.spec, None)

    @classmethod
    def open_or_create(
        cls, path: str | Path, spec: PoolSpec, problems: Sequence[Problem], answers: Answers | None = None
    ) -> "Pool":
        """The pool at `path`, created if there is none, grown if it has fewer problems or a smaller k than the spec.

        It shows the problems asked for, in their order, and the first k samples of each, whatever else is there.
        Raises PoolError naming every setting that differs, or a problem that has another content in the pool. An
        existing pool without a single sample is made anew.
        """
        folder = path_at(path)
        # Read back even if just created: another process may have done so at the same moment, with other settings.
        _make(folder, spec, problems, answers)
        pool = cls.open(folder)
        if _is_unused(pool, spec) and _replace(folder, spec, problems, answers):
            pool = cls.open(folder)
        pool.check_settings(spec)
        manifest.grow(folder, problems, answers, [spec.k] * len(problems))
        return cls.open(folder).only([problem.id for problem in problems], spec.k)

    def only(self, problem_ids: Sequence[str] | None = None, k: int | None = None) -> "Pool":
        """The same pool with nothing but these problems, in this order, and the first k samples of each.

        >>> from offleash.eval.pool.testing import make_pool
        >>> pool = make_pool("pools/some", hits=[3, 0, 2], k=4)
        >>> pool.only(["p2", "p0"], k=2).hits().correct_p.tolist()
        [2, 2]
        """
        budget = self._budget(k)
        ids = self.problem_ids if problem_ids is None else tuple(problem_ids)
        self._marked(ids)
        by_id = {problem.id: problem for problem in self.problems}
        spec = replace(self.spec, k=budget, problems=problems_fingerprint(by_id[name] for name in ids))
        made = Pool(self.path, self.manifest, spec, ids)
        made.__dict__["_whole"] = self._whole
        return made

    def share_problems(self, other: "Pool") -> None:
        """Take the problems from another pool of the same task, version and problems, if it is one and has read them.

        Steps of a run have the same problems: they need not be read for each.
        """
        same = all(
            getattr(self.spec, name) == getattr(other.spec, name) for name in ("task", "task_version", "problems")
        )
        if same and self.manifest.budgets == other.manifest.budgets and "_whole" in other.__dict__:
            self.__dict__["_whole"] = other._whole

    def again(self) -> "Pool":
        """The same problems and k of what the folder holds now; asked for again, if it was made anew meanwhile."""
        return Pool.open_or_create(self.path, self.spec, self.problems, self.answers)

    def check_settings(self, spec: PoolSpec) -> None:
        """Raises PoolError naming every setting that differs; k and problems may."""
        if differences := self.spec.differences(spec):
            raise PoolError(
                f"{self.path} was sampled with other settings (the pool's -> requested): {'; '.join(differences)}. "
                "Choose another folder, or use the pool's settings"
            )

    @property
    def problems(self) -> list[Problem]:
        return [self._whole[0][i] for i in self._shown]

    @property
    def answers(self) -> list[tuple[str, ...] | None]:
        """All correct answer classes of each problem, None where they are not listed."""
        return [self._whole[1][i] for i in self._shown]

    @property
    def problem_ids(self) -> tuple[str, ...]:
        return self.draws.problem_ids

    @property
    def budget_p(self) -> Ints:
        """How many samples of each problem were asked for, at most k: runs that share a pool need not ask alike."""
        return np.minimum([self._whole[2][i] for i in self._shown], self.spec.k).astype(np.int64)

    def append(self, rows: pa.Table | Mapping[str, Any] | Sequence[Sample]) -> Path | None:
        """Write rows (columns by name, or samples) as one part and return its path; None if there are no rows.

        Raises PoolError, and writes nothing, if a row is not of this pool or duplicated, or on a disk error.
        """
        table = rows_table(rows)
        if table.num_rows == 0:
            return None
        where = "samples to append"
        (batch,) = table.select(["problem_id", "index"]).unify_dictionaries().combine_chunks().to_batches()
        shown = Draws(self.problem_ids, self.spec.k)
        problem_r, index_r = shown.locate(batch.column("problem_id"), batch.column("index"), where)
        key_r, count_r = np.unique(problem_r * self.spec.k + index_r, return_counts=True)
        if len(key_r) < table.num_rows:
            problem, index = divmod(int(key_r[count_r > 1][0]), self.spec.k)
            raise PoolError(f"{where}: problem {self.problem_ids[problem]!r} has index {index} more than once")
        self._check_unchanged()
        return self.parts.write(table)

    def adopt(self, hidden: Path) -> Path:
        """Make a part of what a worker wrote with `parts.stage`, of samples that this pool asked it for."""
        self._check_unchanged()
        return self.parts.adopt(hidden)

    def missing(self, k: int | None = None) -> list[np.ndarray]:
        """For each problem, in order, the indices below k (default: what was asked for) that are not sampled yet."""
        limit_p = self.budget_p if k is None else np.full(len(self.problem_ids), self._budget(k))
        return [np.flatnonzero(~seen_k[:limit]) for seen_k, limit in zip(self.seen(k), limit_p, strict=True)]

    @property
    def is_complete(self) -> bool:
        """True if no sample that was asked for is missing. A plan that stops early can be done before that."""
        return not any(map(len, self.missing()))

    def seen(self, k: int | None = None) -> Flags:
        """[problems, k]: which samples there are."""
        return self._seen(k).seen_pk

    def duplicates(self) -> int:
        """How many rows repeat a (problem, index) of an earlier part; they are ignored everywhere."""
        return self._seen(None).duplicates

    def scan(
        self, columns: Sequence[str] = (), limit: int | None = None, problem_ids: Sequence[str] | None = None
    ) -> Iterator[Chunk]:
        """The samples, each (problem, index) once, in chunks of bounded size and in the order they were written.

        `limit` keeps the first samples of each problem (index < limit), `problem_ids` these problems. `answer` and
        `spelling` come dictionary-encoded.
        """
        if strange := [name for name in columns if name not in SCHEMA.names]:
            raise PoolError(f"a pool has no column {', '.join(strange)}; it has {', '.join(SCHEMA.names)}")
        wanted_p = None if problem_ids is None else self._marked(problem_ids)
        seen = Seen(len(self.problem_ids), self._budget(limit))
        return self._scanned(seen, columns, wanted_p)

    def _scanned(self, seen: Seen, columns: Sequence[str], wanted_p: np.ndarray | None) -> Iterator[Chunk]:
        yield from self.parts.scan(self.draws, seen, columns, wanted_p)
        self._check_unchanged()  # last: otherwise the parts might go after the check, and be missed in silence

    def read(
        self,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        problem_ids: Sequence[str] | None = None,
    ) -> pa.Table:
        """The samples sorted by (problem order, index), each once; every column but `completion` unless it is named."""
        names = [name for name in SCHEMA.names if name != "completion"] if columns is None else list(columns)
        chunks = list(self.scan(names, limit, problem_ids))
        schema = pa.schema([SCHEMA.field(name) for name in names])
        parts = [pa.Table.from_batches([chunk.columns]).cast(schema) for chunk in chunks]
        table = pa.concat_tables([schema.empty_table(), *parts]).unify_dictionaries().combine_chunks()
        keys = [chunk.problem_r * self.spec.k + chunk.index_r for chunk in chunks]
        key_r = np.concatenate([np.zeros(0, np.int64), *keys])
        ascending = bool(np.all(key_r[:-1] < key_r[1:]))
        return table if ascending else table.take(pa.array(np.argsort(key_r, kind="stable")))

    def hits(self, limit: int | None = None, level: Level = "answer") -> Hits:
        """Samples and correct samples per problem, hits per unit, of the first `limit` samples.

        At the level "spelling" the units are the spellings of correct answers that were sampled; there are none if the
        task does not tell spellings apart.
        """
        if level == "spelling":
            return count_spellings(self.problem_ids, self.scan(SPELLING_COLUMNS, limit)).hits
        listed = any(answers is not None for answers in self.answers)
        chunks = self.scan(["correct", "answer"] if listed else ["correct"], limit)
        return count_hits(self.problem_ids, self.answers, chunks)

    def spelled(self) -> Spelled | None:
        """Hits of every spelling of a correct answer; None if no sample has a spelling on record."""
        if not self.parts.has_values("spelling"):
            return None
        return count_spellings(self.problem_ids, self.scan(SPELLING_COLUMNS))

    def tally(self, limit_p: Ints | None = None, note: Callable[[str], None] | None = None) -> Tally:
        """What a comparison counts, of each problem's samples with an index below its `limit_p` (default: all).

        With `limit_p`, pools of different budgets are compared at the same number of samples. `note` is called during
        long reads.
        """
        return tally(self.problem_ids, self.answers, self._limited(limit_p, note))

    def _limited(self, limit_p: Ints | None, note: Callable[[str], None] | None) -> Iterator[Chunk]:
        limit = None if limit_p is None else max(1, int(limit_p.max(initial=0)))
        seen, told = 0, 0
        for chunk in self.scan(TALLY_COLUMNS, limit):
            seen += len(chunk.problem_r)
            if note is not None and seen - told >= _NOTE_ROWS:
                told = seen
                note(f"{self.path}: {seen / 1e6:.0f} million samples read")
            yield chunk if limit_p is None else chunk.take(np.flatnonzero(chunk.index_r < limit_p[chunk.problem_r]))

    @cached_property
    def _whole(self) -> manifest.Asked:
        """Of the whole pool, in the order of its file."""
        return self.manifest.asked(self.path)

    @cached_property
    def _shown(self) -> list[int]:
        """The problems that this object shows, as places in the whole pool."""
        place = {problem.id: i for i, problem in enumerate(self._whole[0])}
        return list(place.values()) if self._problem_ids is None else [place[name] for name in self._problem_ids]

    @cached_property
    def draws(self) -> Draws:
        """The samples that this object shows."""
        ids = tuple(self._whole[0][i].id for i in self._shown)
        known = {problem.id for problem in self._whole[0]}
        return Draws(ids, self.spec.k, _Others(self.path, known, self.manifest.spec.k))

    def _check_unchanged(self) -> None:
        """Raises PoolError if the pool was made anew or judged again since it was opened."""
        if (self.path / NAME).exists():
            found, mine = Manifest.read(self.path), self.manifest.generation
            if found.generation > mine or (found.generation == mine and self.parts.stamps[0] not in found.stamps):
                raise PoolError(
                    f"{self.path} was replaced or judged again since it was opened: run the same command again"
                )

    def _budget(self, limit: int | None) -> int:
        if limit is not None and not 1 <= limit <= self.spec.k:
            raise PoolError(f"{self.path} has a budget of {self.spec.k} samples per problem, but the limit is {limit}")
        return self.spec.k if limit is None else limit

    def _marked(self, problem_ids: Sequence[str]) -> np.ndarray:
        wanted = set(problem_ids)
        if strangers := wanted.difference(self.problem_ids):
            raise PoolError(f"{self.path} has no problem {sorted(strangers)[0]!r}")
        return np.array([name in wanted for name in self.problem_ids], dtype=bool)

    def _seen(self, k: int | None) -> Seen:
        seen = self.parts.seen(self.draws, self._budget(k))
        self._check_unchanged()
        return seen


class _Others:
    """Whether a sample is the pool's: by what was known when it was opened, and then by what is on disk now."""

    def __init__(self, folder: Path, known: set[str], k: int) -> None:
        self.folder, self.known, self.k = folder, known, k

    def __call__(self, problem_id: str, index: int) -> bool:
        if problem_id not in self.known or index >= self.k:
            now = Manifest.read(self.folder)
            self.known, self.k = {problem.id for problem in now.asked(self.folder)[0]}, now.spec.k
        return problem_id in self.known and index < self.k


def parts_of(folder: Path, content: Manifest) -> Parts:
    """The samples of a pool, on disk."""
    encoded = ("answer", "spelling")
    return Parts(folder, content.kind, SCHEMA, b"offleash.spec", content.stamps, encoded, _FORMER_NAMES, _LATER)


def _make(folder: Path, spec: PoolSpec, problems: Sequence[Problem], answers: Answers | None) -> bool:
    """Write an empty pool; False if there is one. Several processes may do so at once with the same spec.

    What dead writers left behind is removed.
    """
    manifest.check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
    except OSError as error:
        reason = error.strerror or error
        raise PoolError(f"cannot create a pool in {folder}: {reason}; choose a writable folder") from error
    if (folder / NAME).exists():
        return False
    manifest.create(folder, spec, problems, answers)
    return True


def _is_unused(pool: Pool, spec: PoolSpec) -> bool:
    """Whether an existing pool of another extent or of other settings has neither samples nor scores."""
    same = not pool.spec.differences(spec) and (pool.spec.k, pool.spec.problems) == (spec.k, spec.problems)
    return not same and not pool.parts.paths() and not (pool.path / "scores").exists()


def _replace(folder: Path, spec: PoolSpec, problems: Sequence[Problem], answers: Answers | None) -> bool:
    """Make an unused pool anew, unless another process is about to sample into it."""
    lock = try_hold(folder)
    if lock is None:
        return False
    try:
        with manifest.growing(folder):
            if not _is_unused(Pool.open(folder), spec):
                return False
            (folder / NAME).unlink()
            manifest.create(folder, spec, problems, answers)
    finally:
        os.close(lock)
    return True
