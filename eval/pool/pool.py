"""A pool: every sample of one model on one task with one sampling configuration, in a folder.

`pool.json` holds the settings (written last: a folder without it is not a pool yet), `problems.parquet` the problems,
and `samples-*.parquet` are append-only parts. Any number of processes may append at once; a crash loses at most the
part being written, and `missing` tells what is left to sample. (Two that sample would draw the same: `pool.sample` lets
in one at a time.)
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from offleash.eval.errors import PoolError
from offleash.eval.files import check_is_file, remove_leftovers
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.pool.counts import (
    TALLY_COLUMNS,
    AnswerCounts,
    Hits,
    Ints,
    Tally,
    count_answers,
    count_hits,
    tally,
)
from offleash.eval.pool.rows import SCHEMA, Sample, rows_table
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.pool.spellings import SPELLING_COLUMNS, Level, Spelled, count_spellings
from offleash.eval.pool.store import Answers, Chunk, Draws, Parts, Seen, read_problems, write_problems
from offleash.eval.problem import Problem

_NOTE_ROWS = 5_000_000
FORMAT = 3
"""Of the folder's layout. Older ones are read and continued, a newer one is refused."""
_FORMER_NAMES = {"extracted_by": "step"}  # of columns, in parts of format 1
_LATER = ("spelling",)  # columns that parts of formats 1 and 2 do not have


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

    def __init__(self, path: Path, spec: PoolSpec) -> None:
        self.path = path
        self.spec = spec
        stamp, encoded = (b"offleash.spec", spec.fingerprint()), ("answer", "spelling")
        self.parts = Parts(path, "samples", SCHEMA, *stamp, encoded, _FORMER_NAMES, _LATER)

    @classmethod
    def create(
        cls, path: str | Path, spec: PoolSpec, problems: Sequence[Problem], answers: Answers | None = None
    ) -> "Pool":
        """A new, empty pool. `answers`: the correct answer classes of each problem, None where they are not listed."""
        folder = Path(path)
        if not _make(folder, spec, problems, answers):
            raise PoolError(f"{folder} is already a pool: open it, or choose another folder")
        return cls.open(folder)

    @classmethod
    def open(cls, path: str | Path) -> "Pool":
        """An existing pool."""
        return cls(Path(path), _read_spec(Path(path)))

    @classmethod
    def open_or_create(
        cls, path: str | Path, spec: PoolSpec, problems: Sequence[Problem], answers: Answers | None = None
    ) -> "Pool":
        """The pool at `path`, created if there is none. Raises PoolError naming every setting that differs."""
        folder = Path(path)
        _make(folder, spec, problems, answers)
        # Read back even if just created: another process may have done so at the same moment, with other settings.
        pool = cls.open(folder)
        pool.check_settings(spec)
        return pool

    def check_settings(self, spec: PoolSpec) -> None:
        """Raise PoolError naming every setting in which the pool differs from what is requested."""
        if differences := self.spec.differences(spec):
            raise PoolError(
                f"{self.path} was sampled with other settings (the pool's -> requested): {'; '.join(differences)}. "
                "Choose another folder, or use the pool's settings"
            )

    @property
    def problems(self) -> list[Problem]:
        return self._problem_file[0]

    @property
    def answers(self) -> list[tuple[str, ...] | None]:
        """All correct answer classes of each problem, None where they are not listed."""
        return self._problem_file[1]

    @property
    def problem_ids(self) -> tuple[str, ...]:
        return self._draws.problem_ids

    def append(self, rows: pa.Table | Mapping[str, Any] | Sequence[Sample]) -> Path | None:
        """Write rows (columns by name, or samples) as one part and return its path; None if there are no rows.

        Raises PoolError, and writes nothing, if a row is not of this pool or duplicated, or on a disk error.
        """
        table = rows_table(rows)
        if table.num_rows == 0:
            return None
        where = "samples to append"
        (batch,) = table.select(["problem_id", "index"]).unify_dictionaries().combine_chunks().to_batches()
        problem_r, index_r = self._draws.locate(batch.column("problem_id"), batch.column("index"), where)
        key_r, count_r = np.unique(problem_r * self.spec.k + index_r, return_counts=True)
        if len(key_r) < table.num_rows:
            problem, index = divmod(int(key_r[count_r > 1][0]), self.spec.k)
            raise PoolError(f"{where}: problem {self.problem_ids[problem]!r} has index {index} more than once")
        return self.parts.write(table)

    def missing(self, k: int | None = None) -> list[np.ndarray]:
        """For each problem, in order, the indices below k (default: the budget) that are not sampled yet, ascending."""
        return [np.flatnonzero(~seen_k) for seen_k in self._seen(k).seen_pk]

    @property
    def is_complete(self) -> bool:
        """True if no index below k is missing. A plan that stops early can be done before that."""
        return bool(self._seen(None).seen_pk.all())

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
        return self.parts.scan(self._draws, seen, columns, wanted_p)

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

    def answer_counts(self, limit: int | None = None) -> AnswerCounts:
        """Samples per (problem, answer class), of the first `limit` samples."""
        return count_answers(self.problem_ids, self.scan(["answer"], limit))

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
    def _problem_file(self) -> tuple[list[Problem], list[tuple[str, ...] | None]]:
        path = self.path / "problems.parquet"
        problems, answers = read_problems(path)
        if problems_fingerprint(problems) != self.spec.problems:
            raise PoolError(f"{path} does not hold the problems that pool.json names; restore it or sample a new pool")
        return problems, answers

    @cached_property
    def _draws(self) -> Draws:
        return Draws(tuple(problem.id for problem in self.problems), self.spec.k)

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
        return self.parts.seen(self._draws, self._budget(k))


def _make(folder: Path, spec: PoolSpec, problems: Sequence[Problem], answers: Answers | None) -> bool:
    """Write an empty pool; False if there is one. Several processes may do so at once with the same spec.

    What dead writers left behind is removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        # In this order: another process may create the pool and append to it in between.
        has_parts = any(folder.glob("samples-*.parquet"))
        if (folder / "pool.json").exists():
            return False
    except OSError as error:
        raise PoolError(f"cannot create a pool in {folder}: {error.strerror}; choose a writable folder") from error
    if has_parts:
        raise PoolError(f"{folder} holds samples but no pool.json: restore it, or choose another folder")
    if problems_fingerprint(problems) != spec.problems:
        raise PoolError("the spec's problems fingerprint is not that of the problems: use problems_fingerprint")
    write_problems(folder / "problems.parquet", problems, [None] * len(problems) if answers is None else answers)
    spec.write(folder / "pool.json", FORMAT)
    return True


def _read_spec(folder: Path) -> PoolSpec:
    path = folder / "pool.json"
    check_is_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        what = "is not a pool: it has no pool.json" if folder.is_dir() else "does not exist"
        raise PoolError(f"{folder} {what}; check the path, or sample a pool there first") from None
    except OSError as error:
        raise PoolError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PoolError(f"{path} is not readable as JSON ({error}); restore it or sample a new pool") from error
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise PoolError(f"{folder} is a pool of format {version}, this Offleash reads up to {FORMAT}: upgrade Offleash")
    if version not in range(1, FORMAT + 1) or not isinstance(content.get("spec"), dict):
        raise PoolError(f"{path} does not describe a pool (format {version!r}); restore it or sample a new pool")
    spec = PoolSpec.from_json(content["spec"])
    if spec.fingerprint() != content.get("fingerprint"):
        raise PoolError(f"{path} was changed after the pool was created (its fingerprint differs): restore it")
    return spec
