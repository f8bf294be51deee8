"""How correct answers are written: hits of each spelling, where a task tells spellings of one answer apart.

A policy may lose an answer, or only a way to write it. So a unit at this level is a (problem, spelling of a correct
answer) that was sampled. Nobody lists them beforehand: what was never sampled is not counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offleash.eval.errors import PoolError
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.store import Chunk

Level = Literal["answer", "spelling"]
SPELLING_COLUMNS = ("correct", "answer", "spelling")

_KEYS = ["problem", "spelling", "answer"]
_COUNTS = pa.schema(
    [("problem", pa.int64()), ("spelling", pa.large_string()), ("answer", pa.large_string()), ("count", pa.int64())]
)
_MERGE_ROWS = 1_000_000  # of separate chunks, held before they are merged


@dataclass(frozen=True, slots=True, eq=False)
class Spelled:
    """Spellings of correct answers, sorted by problem and text, and how often each was sampled."""

    hits: Hits
    """`unit_answer` is the spelling."""
    answer_u: tuple[str | None, ...]
    """The answer that it spells."""


def count_spellings(problem_ids: Sequence[str], chunks: Iterable[Chunk]) -> Spelled:
    """From chunks with SPELLING_COLUMNS; samples without a spelling on record hit no unit."""
    n_p, correct_p = (np.zeros(len(problem_ids), np.int64) for _ in range(2))
    tables: list[pa.Table] = []
    for chunk in chunks:
        correct_r = chunk.columns.column("correct").to_numpy(zero_copy_only=False)
        n_p += np.bincount(chunk.problem_r, minlength=len(n_p))
        correct_p += np.bincount(chunk.problem_r[correct_r], minlength=len(n_p))
        spelled_r = pc.is_valid(chunk.columns.column("spelling")).to_numpy(zero_copy_only=False)
        tables.append(_counted(chunk.take(np.flatnonzero(correct_r & spelled_r))))
        if sum(map(len, tables)) > _MERGE_ROWS:
            tables = [_merged(tables)]
    table = _merged(tables).sort_by([(name, "ascending") for name in _KEYS])
    problem_u, hits_u = table.column("problem").to_numpy(), table.column("count").to_numpy()
    text_u, answer_u = (tuple(table.column(name).to_pylist()) for name in ("spelling", "answer"))
    return Spelled(Hits(tuple(problem_ids), n_p, correct_p, problem_u, text_u, hits_u), answer_u)


def _counted(chunk: Chunk) -> pa.Table:
    texts = {name: chunk.columns.column(name).cast(pa.large_string()) for name in ("spelling", "answer")}
    ones = np.ones(len(chunk.problem_r), np.int64)
    return _merged([pa.table({"problem": chunk.problem_r, **texts, "count": ones}, schema=_COUNTS)])


def _merged(tables: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables([_COUNTS.empty_table(), *tables]).group_by(_KEYS).aggregate([("count", "sum")])
    return table.rename_columns({"count_sum": "count"}).select(_COUNTS.names).cast(_COUNTS)


def match_spellings(base: Spelled, policy: Spelled) -> tuple[Spelled, Spelled]:
    """Two pools of the same problems, both over the spellings that either has."""
    if base.hits.problem_ids != policy.hits.problem_ids:
        raise PoolError("the two pools hold different problems: their spellings cannot be compared")
    hits_of = [dict(zip(_units(side), side.hits.unit_hits.tolist(), strict=True)) for side in (base, policy)]
    units = sorted({unit: None for of_side in hits_of for unit in of_side}, key=lambda unit: (unit[0], str(unit[1])))
    problem_u = np.array([problem for problem, _, _ in units], np.int64)
    text_u, answer_u = tuple(text for _, text, _ in units), tuple(answer for _, _, answer in units)
    one, other = (
        Spelled(
            replace(
                side.hits,
                unit_problem=problem_u,
                unit_answer=text_u,
                unit_hits=np.array([of_side.get(unit, 0) for unit in units], np.int64),
            ),
            answer_u,
        )
        for side, of_side in zip((base, policy), hits_of, strict=True)
    )
    return one, other


def _units(side: Spelled) -> list[tuple[int, str | None, str | None]]:
    return list(zip(side.hits.unit_problem.tolist(), side.hits.unit_answer, side.answer_u, strict=True))


def respelled(base: Spelled, policy: Spelled) -> NDArray[np.bool_]:
    """Of matched sides: the spellings that only the base reached, of an answer that the policy reaches as well."""
    keys = list(zip(base.hits.unit_problem.tolist(), base.answer_u, strict=True))
    reached = {key for key, hits in zip(keys, policy.hits.unit_hits.tolist(), strict=True) if hits}
    lost_u = (base.hits.unit_hits > 0) & (policy.hits.unit_hits == 0)
    return lost_u & np.array([key in reached for key in keys], dtype=bool)
