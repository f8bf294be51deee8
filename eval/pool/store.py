"""What a pool keeps on disk: append-only parquet parts, keyed by (problem, index), and the file of its problems.

The samples of a pool and the scores of its completions are stored in the same way. A part is written atomically,
stamped with the fingerprint of the settings it was made with, and checked when it is read. Two workers may have written
the same (problem, index): the first part by name, which is the first written, has it; the other row is dropped and
counted. A map of one byte per possible sample remembers what was seen: 25 MB for 25 million.
"""

import json
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from offleash.eval.errors import PoolError
from offleash.eval.files import check_is_file, put_in_place, write_atomic, write_hidden
from offleash.eval.problem import Problem
from offleash.eval.storage import StoragePath

_NARROW_ROWS, _WIDE_ROWS = 1 << 20, 1 << 14
_GROUP_BYTES, _GROUP_ROWS = 1 << 19, 256  # of a row group: so that some completions are read without the rest
_OPENED_AHEAD = 16
Item = TypeVar("Item")
Answers = Sequence[Sequence[str] | None]
"""Per problem all its correct answer classes, or None where they are not listed."""

_PROBLEM_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("gold", pa.string(), nullable=False),
        pa.field("meta", pa.string(), nullable=False),
        pa.field("answers", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some rows: their problem (an index into the pool's problems), the index of the sample, the requested columns."""

    problem_r: np.ndarray
    index_r: np.ndarray
    columns: pa.RecordBatch

    def take(self, rows: np.ndarray) -> "Chunk":
        """These rows, by ascending position."""
        kept = self.columns if len(rows) == len(self.index_r) else self.columns.take(pa.array(rows))
        return Chunk(self.problem_r[rows], self.index_r[rows], kept)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The samples that one looks at: problems in order, each with indices 0 to k - 1."""

    problem_ids: tuple[str, ...]
    k: int
    belongs: Callable[[str, int], bool] = lambda problem_id, index: False
    """Whether a sample that is not among these is the pool's all the same."""

    def locate(self, problem_id: pa.DictionaryArray, index: pa.Array, where: str) -> tuple[np.ndarray, np.ndarray]:
        """(problem_r, index_r) of rows; the problem is -1 for samples of the pool that are not among these.

        Raises PoolError, naming the first, for one that is not of the pool.
        """
        ids = pa.array(self.problem_ids, problem_id.dictionary.type)
        place = pc.fill_null(pc.index_in(problem_id.dictionary, value_set=ids), -1).to_numpy(zero_copy_only=False)
        problem_r = place[problem_id.indices.to_numpy(zero_copy_only=False)].astype(np.int64)
        index_r = index.to_numpy(zero_copy_only=False)
        strange = np.flatnonzero((problem_r < 0) | (index_r < 0) | (index_r >= self.k))
        if len(strange):
            self._check_others(problem_id, index_r, strange, where)
            problem_r[strange] = -1
        return problem_r, index_r

    def _check_others(
        self, problem_id: pa.DictionaryArray, index_r: np.ndarray, strange: np.ndarray, where: str
    ) -> None:
        """Of each problem the first and the last of the strange rows, by index: if they belong, so do all."""
        code_r = problem_id.indices.to_numpy(zero_copy_only=False)[strange]
        order = np.lexsort((index_r[strange], code_r))
        edges = np.flatnonzero(np.diff(code_r[order], prepend=-1, append=-1))
        for row in strange[order[np.concatenate([edges[:-1], edges[1:] - 1])]].tolist():
            name, index = problem_id[row].as_py(), int(index_r[row])
            if index < 0 or not self.belongs(name, index):
                raise PoolError(
                    f"{where}: problem {name!r}, index {index} does not belong to this pool, "
                    f"which has {len(self.problem_ids)} problems and indices 0 to {self.k - 1}"
                )


class Seen:
    """Which samples below `limit` were seen."""

    def __init__(self, problems: int, limit: int) -> None:
        self.limit = limit
        self.seen_pk = np.zeros((problems, limit), dtype=bool)
        self.duplicates = 0

    def add(self, problem_r: np.ndarray, index_r: np.ndarray) -> np.ndarray:
        """Mark rows, all below the limit, as seen; the positions of those that were new, first occurrence only."""
        key_r = problem_r * self.limit + index_r
        new = np.flatnonzero(~self.seen_pk.reshape(-1)[key_r])
        if np.any(np.diff(key_r[new]) <= 0):  # not ascending: it may repeat itself
            _, first = np.unique(key_r[new], return_index=True)
            new = new[np.sort(first)]
        self.seen_pk.reshape(-1)[key_r[new]] = True
        self.duplicates += len(key_r) - len(new)
        return new


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one kind in one folder: `KIND-<time>-<id>.parquet`, which sort by name in the order of writing."""

    folder: Path
    kind: str
    schema: pa.Schema
    """Has `problem_id` (dictionary-encoded) and `index`."""
    stamp_key: bytes
    stamps: tuple[str, ...]
    """Fingerprints of the settings that the rows were made with: any of them is read, the first is written."""
    encoded: tuple[str, ...] = ()
    """Text columns that are read dictionary-encoded, so that counting them never touches their text twice."""
    former_names: Mapping[str, str] = field(default_factory=dict)
    """Columns that older versions wrote under another name: new name -> old name."""
    later: tuple[str, ...] = ()
    """Columns that older versions did not write: there they are unknown."""

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.kind}-*.parquet"))

    def write(self, table: pa.Table, name: str = "") -> Path:
        """Write a table of the schema as one part, called KIND-`name` (default: by the time)."""
        path = self.folder / f"{self.kind}-{name or _by_time()}"
        write_atomic(path, self._content(table))
        return path

    def stage(self, table: pa.Table) -> Path:
        """Write a table of the schema as a hidden file, which `adopt` makes a part."""
        return write_hidden(self.folder, self._content(table))

    def staged(self, hidden: Path) -> pa.Table:
        """What `stage` wrote."""
        try:
            with _source(hidden) as source:
                return pq.read_table(source, page_checksum_verification=True).cast(self.schema)
        except (pa.ArrowException, OSError) as error:
            raise _gone(hidden, error) from error

    def adopt(self, hidden: Path) -> Path:
        """Make a hidden file a part."""
        path = self.folder / f"{self.kind}-{_by_time()}"
        try:
            put_in_place(hidden, path)
        except OSError as error:
            raise _gone(hidden, error) from error
        return path

    def _content(self, table: pa.Table) -> memoryview:
        texts = [
            item.name for item in self.schema if pa.types.is_large_string(item.type) and item.name not in self.encoded
        ]
        text_bytes = sum(table.column(name).nbytes for name in texts)
        rows = max(_GROUP_ROWS, table.num_rows * _GROUP_BYTES // max(text_bytes, 1))
        return _parquet(table.replace_schema_metadata({self.stamp_key: self.stamps[0].encode()}), rows)

    def read(self, path: Path, columns: Sequence[str], problem_ids: Set[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of one part in bounded batches. Raises PoolError if it is damaged or has another stamp.

        With `problem_ids`, only the row groups that hold any of these problems.
        """
        check_is_file(path)
        try:
            groups = None
            if problem_ids is not None:
                found = path.stat()
                held = _problems_held(path, found.st_size, found.st_mtime_ns, found.st_ino)
                groups = [i for i, held_here in enumerate(held) if not held_here.isdisjoint(problem_ids)]
                if not groups:
                    return
            rows = _WIDE_ROWS if self._is_wide(columns) else _NARROW_ROWS
            with _source(path) as source:
                about = pq.read_metadata(source)
                encoded = [name for name in self.encoded if name in about.schema.names]
                settings = {"metadata": about, "read_dictionary": encoded, "page_checksum_verification": True}
                with pq.ParquetFile(source, **settings) as part:
                    stored = self._check(path, part.schema_arrow)
                    names = [stored[name] for name in columns if name in stored]
                    for batch in part.iter_batches(rows, groups, columns=names):
                        batch.validate(full=True)
                        yield self._with_later(batch.select(names), columns, stored)
        # Besides arrow's own, what its Python layer raises on a mangled footer.
        except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise PoolError(f"{path} is damaged ({reason}): move it away and resume to make its rows again") from error

    def scan(
        self, draws: Draws, seen: Seen, columns: Sequence[str], wanted_p: np.ndarray | None = None
    ) -> Iterator[Chunk]:
        """Rows with an index below `seen.limit`, of the problems marked in `wanted_p`, each (problem, index) once.

        Chunks come in the order of the parts. `seen` is filled on the way. Without texts, which are large, the next
        parts are opened meanwhile: a pool may have many, and be far away.
        """
        names = list(dict.fromkeys(("problem_id", "index", *columns)))
        wanted_ids = None if wanted_p is None else {draws.problem_ids[p] for p in np.flatnonzero(wanted_p)}

        def batches(path: Path) -> Iterator[tuple[Path, pa.RecordBatch]]:
            return zip(repeat(path), self.read(path, names, wanted_ids), strict=False)

        chained = chain.from_iterable if self._is_wide(names) else _opened_ahead
        for path, batch in chained(map(batches, self.paths())):
            problem_r, index_r = draws.locate(batch.column("problem_id"), batch.column("index"), str(path))
            wanted_r = (problem_r >= 0) & (index_r < seen.limit)
            if wanted_p is not None:
                wanted_r &= wanted_p[problem_r]
            rows = np.flatnonzero(wanted_r)
            rows = rows[seen.add(problem_r[rows], index_r[rows])]
            yield Chunk(problem_r, index_r, batch.select(list(columns))).take(rows)

    def seen(self, draws: Draws, limit: int) -> Seen:
        """Which samples below `limit` the parts hold."""
        seen = Seen(len(draws.problem_ids), limit)
        for _ in self.scan(draws, seen, ()):
            pass
        return seen

    def has_values(self, column: str) -> bool:
        """Whether any part may have a value in a column, by what the parts say of themselves."""
        return any(_null_count(path, column)[0] < _null_count(path, column)[1] for path in self.paths())

    def lacks_values(self, column: str) -> int:
        """How many rows have no value in a column, by what the parts say of themselves."""
        return sum(_null_count(path, column)[0] for path in self.paths())

    def _is_wide(self, columns: Sequence[str]) -> bool:
        """Whether there are texts among them that are read as they are."""
        return any(pa.types.is_large_string(self.schema.field(name).type) for name in {*columns} - {*self.encoded})

    def _with_later(self, batch: pa.RecordBatch, columns: Sequence[str], stored: Mapping[str, str]) -> pa.RecordBatch:
        """With nulls for the columns that the part does not have."""
        if all(name in stored for name in columns):
            return batch.rename_columns(list(columns))
        kinds = {
            name: pa.dictionary(pa.int32(), self.schema.field(name).type)
            if name in self.encoded
            else self.schema.field(name).type
            for name in columns
        }
        found = [
            batch.column(stored[name]) if name in stored else pa.nulls(batch.num_rows, kinds[name]) for name in columns
        ]
        return pa.RecordBatch.from_arrays(found, names=list(columns))

    def _check(self, path: Path, found: pa.Schema) -> dict[str, str]:
        """The name under which the part stores each column of the schema that it has."""
        stored = {
            name: name if name in found.names else self.former_names.get(name, name)
            for name in self.schema.names
            if name in found.names or name not in self.later
        }
        typed = [item for item in self.schema if item.name in stored and item.name not in self.encoded]
        if found.names != list(stored.values()) or any(found.field(stored[f.name]).type != f.type for f in typed):
            raise PoolError(
                f"{path} does not have the columns of a part ({', '.join(self.schema.names)}): move it away"
            )
        if (found.metadata or {}).get(self.stamp_key) not in [stamp.encode() for stamp in self.stamps]:
            raise PoolError(f"{path} was made with other settings (its fingerprint differs): move it away")
        return stored


@lru_cache(maxsize=4096)
def _problems_held(path: Path, size: int, changed: int, number: int) -> tuple[frozenset[str], ...]:
    """The problems in each row group of a part. Remembered for as long as the file is the same."""
    with _source(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as part:
        groups = [part.read_row_group(i, ["problem_id"]).column(0) for i in range(part.num_row_groups)]
    return tuple(frozenset(pc.unique(column).to_pylist()) for column in groups)


def _null_count(path: Path, column: str) -> tuple[int, int]:
    """Rows without a value in a column, and all rows. A part that does not count them is taken to have none without."""
    check_is_file(path)
    try:
        with _source(path) as source:
            metadata = pq.read_metadata(source)
    except (pa.ArrowException, OSError) as error:
        raise PoolError(f"{path} is damaged ({str(error).splitlines()[0]}): move it away and resume") from error
    names = metadata.schema.names
    if column not in names:
        return metadata.num_rows, metadata.num_rows
    groups = [metadata.row_group(i).column(names.index(column)) for i in range(metadata.num_row_groups)]
    return sum(g.statistics.null_count for g in groups if g.is_stats_set), metadata.num_rows


def _opened_ahead(sources: Iterable[Iterator[Item]]) -> Iterator[Item]:
    """The items of all of them, in order; threads get the first item of the next few."""
    with ThreadPoolExecutor(_OPENED_AHEAD) as threads:
        begun = deque[tuple[Future[list[Item]], Iterator[Item]]]()
        for source in sources:
            begun.append((threads.submit(list, islice(source, 1)), source))
            if len(begun) > _OPENED_AHEAD:
                yield from _all_of(*begun.popleft())
        for first, rest in begun:
            yield from _all_of(first, rest)


def _all_of(first: "Future[list[Item]]", rest: Iterator[Item]) -> Iterator[Item]:
    yield from first.result()
    yield from rest


@contextmanager
def _source(path: Path) -> Iterator[Any]:
    """What pyarrow reads a file from: the path of a file of this machine, an object opened."""
    if isinstance(path, StoragePath):
        with path.system.open_input_file(path.key) as file:
            yield file
    else:
        yield path


def _by_time() -> str:
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}.parquet"


def _gone(hidden: Path, error: Exception) -> PoolError:
    reason = str(error).splitlines()[0]
    return PoolError(f"{hidden}, which a worker wrote, cannot be used ({reason}): the same command draws it again")


def _parquet(table: pa.Table, rows: int | None = None) -> memoryview:
    """In row groups of so many rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, row_group_size=rows)
    return memoryview(sink.getvalue())


def float_column(column: pa.Array) -> NDArray[np.float64]:
    """Numbers, NaN where they are null."""
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def valid_text(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD, so that it can be stored as UTF-8."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def write_problems(path: Path, problems: Sequence[Problem], answers: Answers) -> None:
    """Prompt and metadata are kept as JSON. Raises PoolError for problems that could not be told apart or read back."""
    if len(answers) != len(problems):
        raise PoolError(f"{len(problems)} problems but {len(answers)} lists of correct answers: give one per problem")
    if not problems:
        raise PoolError("a pool needs at least one problem, and the task has none")
    doubled = [name for name, count in Counter(problem.id for problem in problems).items() if count > 1]
    if doubled:
        raise PoolError(f"{len(doubled)} problem ids occur more than once, e.g. {doubled[0]!r}: make them unique")
    rows = [_problem_row(problem, listed) for problem, listed in zip(problems, answers, strict=True)]
    write_atomic(path, _parquet(pa.Table.from_pylist(rows, schema=_PROBLEM_SCHEMA)))


def _problem_row(problem: Problem, answers: Sequence[str] | None) -> dict[str, Any]:
    for name in ("id", "gold"):
        if valid_text(getattr(problem, name)) != getattr(problem, name):
            raise PoolError(f"problem {problem.id!r}: its {name} holds a lone surrogate and cannot be stored")
    listed = None if answers is None else [valid_text(answer) for answer in answers]
    if listed is not None and len(set(listed)) < len(listed):
        raise PoolError(f"problem {problem.id!r}: its list of correct answers has duplicates; list each class once")
    try:
        prompt, meta = json.dumps(problem.prompt), json.dumps(problem.meta)
    except (TypeError, ValueError) as error:
        raise PoolError(f"problem {problem.id!r}: prompt or metadata cannot be written as JSON: {error}") from error
    return {"id": problem.id, "prompt": prompt, "gold": problem.gold, "meta": meta, "answers": listed}


def read_problems(path: Path) -> tuple[list[Problem], list[tuple[str, ...] | None]]:
    """The problems in order, and their answers where listed. Raises PoolError if the file is missing or damaged."""
    check_is_file(path)
    try:
        with _source(path) as source:
            rows = pq.read_table(source, page_checksum_verification=True).to_pylist()
        problems = [Problem(row["id"], json.loads(row["prompt"]), row["gold"], json.loads(row["meta"])) for row in rows]
        answers = [None if row["answers"] is None else tuple(row["answers"]) for row in rows]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise PoolError(f"{path} is missing or damaged ({reason}); restore it or sample a new pool") from error
    return problems, answers
