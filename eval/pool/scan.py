"""Reading the parts of a pool as one set of samples: every (problem, index) once, in chunks of bounded size.

Two workers may have drawn the same (problem, index). The first part by name, which is the first written, has it; the
other row is dropped and counted. A map of one byte per possible draw remembers what was seen: 25 MB for 25 million.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offleash.eval.errors import PoolError
from offleash.eval.pool.store import list_parts, read_part


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some samples: their problem (an index into the pool's problems), the index of the draw, the columns asked for."""

    problem_r: np.ndarray
    index_r: np.ndarray
    columns: pa.RecordBatch


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The draws a pool may hold: its problems in order, each with indices 0 to k - 1."""

    problem_ids: tuple[str, ...]
    k: int

    def locate(self, problem_id: pa.DictionaryArray, index: pa.Array, where: str) -> tuple[np.ndarray, np.ndarray]:
        """(problem_r, index_r) of rows. Raises PoolError, naming the first, for one that is not a draw of this pool."""
        ids = pa.array(self.problem_ids, problem_id.dictionary.type)
        place = pc.fill_null(pc.index_in(problem_id.dictionary, value_set=ids), -1).to_numpy(zero_copy_only=False)
        problem_r = place[problem_id.indices.to_numpy(zero_copy_only=False)].astype(np.int64)
        index_r = index.to_numpy(zero_copy_only=False)
        strange = np.flatnonzero((problem_r < 0) | (index_r < 0) | (index_r >= self.k))
        if len(strange):
            row = int(strange[0])
            raise PoolError(
                f"{where}: problem {problem_id[row].as_py()!r}, index {index_r[row]} is not a draw of this pool, "
                f"which has {len(self.problem_ids)} problems and indices 0 to {self.k - 1}"
            )
        return problem_r, index_r


class Seen:
    """Which draws below `limit` were met."""

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


def scan_parts(
    folder: Path, spec: str, draws: Draws, seen: Seen, columns: Sequence[str], wanted_p: np.ndarray | None = None
) -> Iterator[Chunk]:
    """The samples of parts stamped `spec` with an index below `seen.limit`, of the problems marked in `wanted_p`.

    Chunks come in the order of the parts. `seen` is filled on the way.
    """
    names = list(dict.fromkeys(("problem_id", "index", *columns)))
    for path in list_parts(folder):
        for batch in read_part(path, names, spec):
            problem_r, index_r = draws.locate(batch.column("problem_id"), batch.column("index"), str(path))
            wanted_r = index_r < seen.limit
            if wanted_p is not None:
                wanted_r &= wanted_p[problem_r]
            rows = np.flatnonzero(wanted_r)
            rows = rows[seen.add(problem_r[rows], index_r[rows])]
            kept = batch.select(list(columns))
            if len(rows) < batch.num_rows:
                kept = kept.take(pa.array(rows))
            yield Chunk(problem_r[rows], index_r[rows], kept)
