"""Scores of a pool's completions under one model, on disk: a folder inside the pool, `POOL/scores/NAME`.

`score.json` records the model and settings, `scores-*.parquet` are append-only parts keyed by (problem, index), stored
like the samples of the pool. The samples are never written to. A part is written atomically, so a crash loses at most
the part being written; completions that are in no part are left to score.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offleash.eval.errors import PoolError
from offleash.eval.files import check_is_file, remove_leftovers
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import Spec
from offleash.eval.pool.store import Draws, Parts, Seen, float_column

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpec(Spec):
    """What a score depends on. `model`, `revision`, `versions` and `created` are recorded but never compared."""

    pool: str
    """The fingerprint that the pool was created with."""
    model: str = field(compare=False)
    revision: str = field(compare=False)
    weights: str
    dtype: str
    template: str
    temperature: float
    """Divides the logits, for log-probability and entropy alike."""
    end_token: str
    """Appended to completions that were not truncated; "" is none."""
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)
    created: str = field(default="", compare=False)


class ScoreRows(NamedTuple):
    """Scored completions, one entry each. NaN is unknown: the log-probability of what cannot be scored (no text, no
    tokens, or too long for the model), tokens without a text, drawn tokens that the pool does not record."""

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
        """Negative log-probability per token."""
        return -self.logprob_r / np.where(self.tokens_r > 0, self.tokens_r, np.nan)

    @property
    def retokenized_r(self) -> NDArray[np.bool_]:
        """Scored with a different number of tokens than it was sampled with."""
        return np.isfinite(self.logprob_r + self.drawn_r) & (self.tokens_r != self.drawn_r)


class ScoreFolder:
    """The scores of one pool under one model; made by `open` or `open_or_create`."""

    def __init__(self, path: Path, spec: ScoreSpec, draws: Draws) -> None:
        self.path, self.spec, self._draws = path, spec, draws
        self._parts = Parts(path, "scores", SCHEMA, b"offleash.score", (spec.fingerprint(),))

    @classmethod
    def open(cls, pool: Pool, name: str) -> "ScoreFolder":
        """Raises PoolError if it does not exist, is damaged or belongs to another pool."""
        path = pool.path / "scores" / name
        spec = _read_spec(path / "score.json")
        if spec.pool != pool.manifest.created_as:
            raise PoolError(f"{path} holds scores of another pool: move it away")
        return cls(path, spec, pool.draws)

    @classmethod
    def open_or_create(cls, pool: Pool, name: str, spec: ScoreSpec) -> "ScoreFolder":
        """Raises PoolError listing every setting that differs from those of the existing scores."""
        path = pool.path / "scores" / name
        if not (path / "score.json").exists():
            _create(path, spec)
        folder = cls.open(pool, name)
        if differences := folder.spec.differences(spec):
            raise PoolError(
                f"{path} was scored with other settings (existing -> requested): {'; '.join(differences)}. Choose "
                "another --name, or use the existing settings"
            )
        remove_leftovers(path)
        return folder

    @property
    def name(self) -> str:
        return self.path.name

    def append(self, columns: Mapping[str, Any]) -> None:
        """Write rows (a list for each column) as one part; NaN is stored as null."""
        arrays = [pa.array(columns[item.name], type=item.type, from_pandas=True) for item in SCHEMA]
        self._parts.write(pa.table(arrays, schema=SCHEMA))

    def read(self) -> ScoreRows:
        """Every (problem, index) once: the first written counts."""
        seen = Seen(len(self._draws.problem_ids), self._draws.k)
        found = [ScoreRows(np.zeros(0, np.int64), np.zeros(0, np.int64), *[np.zeros(0)] * 4)]
        for chunk in self._parts.scan(self._draws, seen, SCHEMA.names[2:]):
            found.append(ScoreRows(chunk.problem_r, chunk.index_r, *map(float_column, chunk.columns.columns)))
        return ScoreRows(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def done(self) -> NDArray[np.bool_]:
        """[problems, k]: which completions have a row, scored or without anything to score."""
        return self._parts.seen(self._draws, self._draws.k).seen_pk


def find_scores(pool: Pool) -> Iterator[ScoreFolder]:
    """All scores of a pool, by name."""
    for path in sorted(pool.path.glob("scores/*/score.json")):
        yield ScoreFolder.open(pool, path.parent.name)


def _create(path: Path, spec: ScoreSpec) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PoolError(f"cannot make {path}: {error.strerror}; scores are stored inside the pool") from error
    spec.write(path / "score.json", FORMAT)


def _read_spec(path: Path) -> ScoreSpec:
    check_is_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        spec = ScoreSpec(**content["spec"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PoolError(f"{path} is missing or damaged ({error}): move the folder away and score again") from error
    if content.get("format") != FORMAT or spec.fingerprint() != content.get("fingerprint"):
        raise PoolError(f"{path} has another format or was modified: move the folder away and score again")
    return spec
