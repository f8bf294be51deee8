"""Scores of a pool's completions under one model, on disk: a folder inside the pool, `POOL/scores/NAME`.

`score.json` says under what they were scored, `scores-*.parquet` are append-only parts keyed by (problem, index) like
the pool's own. The pool itself is never written to. A part is whole or absent, so a crash loses at most the part being
written, and what is not in any part is what is left to score.
"""

import datetime
import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from offleash.eval.errors import PoolError
from offleash.eval.files import remove_leftovers, write_atomic
from offleash.eval.fingerprint import canonical_json
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.store import Draws, Seen

FORMAT = 1
SCHEMA = pa.schema(
    [
        pa.field("problem_id", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("tokens", pa.int32()),
        pa.field("drawn_tokens", pa.int32()),
        pa.field("logprob", pa.float64()),
        pa.field("entropy", pa.float64()),
    ]
)
_STAMP = b"offleash.score"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpec:
    """What a score depends on. `model`, `revision`, `versions` and `created` are recorded and never compared."""

    pool: str
    """The pool's fingerprint."""
    model: str = field(compare=False)
    revision: str = field(compare=False)
    weights: str
    dtype: str
    template: str
    temperature: float
    """That divides the logits, for log-probability and entropy alike."""
    end_token: str
    """Appended to completions that were not cut; "" is none."""
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)
    created: str = field(default="", compare=False)

    def compared(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self) if item.compare}

    def fingerprint(self) -> str:
        return hashlib.sha256(canonical_json(self.compared()).encode()).hexdigest()

    def differences(self, other: "ScoreSpec") -> list[str]:
        mine, theirs = self.compared(), other.compared()
        return [f"{name}: {mine[name]!r} -> {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]


class ScoreRows(NamedTuple):
    """Scored completions, one entry each. NaN is unknown: a log-probability where nothing could be scored (no text, no
    token, or too long for the model), tokens where there is no text, drawn tokens where the pool does not say."""

    problem_r: np.ndarray
    index_r: np.ndarray
    tokens_r: np.ndarray
    drawn_r: np.ndarray
    logprob_r: np.ndarray
    entropy_r: np.ndarray

    def where(self, kept: NDArray[np.bool_]) -> "ScoreRows":
        return ScoreRows(*(column[kept] for column in self))

    @property
    def nll_r(self) -> np.ndarray:
        """Minus the log-probability per token."""
        return -self.logprob_r / np.where(self.tokens_r > 0, self.tokens_r, np.nan)

    @property
    def retokenized_r(self) -> NDArray[np.bool_]:
        """Scored in another number of tokens than it was drawn with."""
        return np.isfinite(self.logprob_r + self.drawn_r) & (self.tokens_r != self.drawn_r)


class ScoreFolder:
    """Made by `open` or `open_or_create`."""

    def __init__(self, path: Path, spec: ScoreSpec, draws: Draws) -> None:
        self.path, self.spec, self._draws = path, spec, draws
        self._fingerprint = spec.fingerprint()

    @classmethod
    def open(cls, pool: Pool, name: str) -> "ScoreFolder":
        """Raises PoolError if there is none, if it is damaged, or if it is of another pool."""
        path = pool.path / "scores" / name
        spec = _read_spec(path / "score.json")
        if spec.pool != pool.spec.fingerprint():
            raise PoolError(f"{path} holds scores of another pool's completions: move it away")
        return cls(path, spec, Draws(pool.problem_ids, pool.spec.k))

    @classmethod
    def open_or_create(cls, pool: Pool, name: str, spec: ScoreSpec) -> "ScoreFolder":
        """Raises PoolError naming every setting that is not the one the scores there were made with."""
        path = pool.path / "scores" / name
        if not (path / "score.json").exists():
            _create(path, spec)
        folder = cls.open(pool, name)
        if differences := folder.spec.differences(spec):
            raise PoolError(
                f"{path} was scored otherwise (there -> asked for): {'; '.join(differences)}. Choose another --name, "
                "or ask for what was used there"
            )
        remove_leftovers(path)
        return folder

    @property
    def name(self) -> str:
        return self.path.name

    def append(self, columns: Mapping[str, Any]) -> None:
        """Write rows (a list for each column) as one part; NaN is stored as null."""
        table = pa.table(
            [pa.array(columns[item.name], type=item.type, from_pandas=True) for item in SCHEMA],
            schema=SCHEMA.with_metadata({_STAMP: self._fingerprint.encode()}),
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        part = f"scores-{time.time_ns():020d}-{uuid.uuid4().hex[:12]}.parquet"
        write_atomic(self.path / part, memoryview(sink.getvalue()))

    def read(self) -> ScoreRows:
        """Every (problem, index) once: the first written counts."""
        seen = Seen(len(self._draws.problem_ids), self._draws.k)
        found = [ScoreRows(*(np.zeros(0) for _ in ScoreRows._fields))]
        for path in sorted(self.path.glob("scores-*.parquet")):
            table = self._table(path)
            problem_r, index_r = self._draws.locate(table["problem_id"], table["index"], str(path))
            new = seen.add(problem_r, index_r)
            numbers = (_floats(table[name])[new] for name in SCHEMA.names[2:])
            found.append(ScoreRows(problem_r[new], index_r[new], *numbers))
        columns = [np.concatenate(column) for column in zip(*found, strict=True)]
        return ScoreRows(columns[0].astype(np.int64), columns[1].astype(np.int64), *columns[2:])

    def done(self) -> NDArray[np.bool_]:
        """[problems, k]: what was looked at, be it scored or found to have nothing to score."""
        rows = self.read()
        done_pk = np.zeros((len(self._draws.problem_ids), self._draws.k), dtype=bool)
        done_pk[rows.problem_r, rows.index_r] = True
        return done_pk

    def _table(self, path: Path) -> dict[str, pa.Array]:
        try:
            table = pq.read_table(path, page_checksum_verification=True)
            columns = {name: table.column(name).unify_dictionaries().combine_chunks() for name in SCHEMA.names}
        except (pa.ArrowException, OSError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise PoolError(f"{path} is damaged ({reason}): delete it and score again") from error
        if (table.schema.metadata or {}).get(_STAMP) != self._fingerprint.encode():
            raise PoolError(f"{path} belongs to other scores (its fingerprint differs): move it away")
        return columns


def find_scores(pool: Pool) -> Iterator[ScoreFolder]:
    """All that a pool has, by name."""
    for path in sorted(pool.path.glob("scores/*/score.json")):
        yield ScoreFolder.open(pool, path.parent.name)


def _create(path: Path, spec: ScoreSpec) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PoolError(f"cannot make {path}: {error.strerror}; scores are kept inside the pool") from error
    spec = replace(spec, created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    content = {"format": FORMAT, "fingerprint": spec.fingerprint(), "spec": asdict(spec)}
    write_atomic(path / "score.json", json.dumps(content, indent=2).encode())


def _read_spec(path: Path) -> ScoreSpec:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        spec = ScoreSpec(**content["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PoolError(f"{path} is missing or damaged ({error}): move the folder away and score again") from error
    if content.get("format") != FORMAT or spec.fingerprint() != content.get("fingerprint"):
        raise PoolError(f"{path} is of another version or was changed: move the folder away and score again")
    return spec


def _floats(column: pa.Array) -> NDArray[np.float64]:
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
