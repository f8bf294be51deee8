"""A row of a pool is one sample: its schema, and the conversion of samples in any accepted form into a table.

Text is stored as UTF-8: a lone surrogate (what bad decoding leaves in a Python string) becomes U+FFFD, a surrogate pair
becomes the character it encodes; NUL bytes and everything else are kept unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offleash.eval.errors import PoolError
from offleash.eval.pool.store import valid_text
from offleash.eval.problem import Status, Verdict

_CODES = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field("problem_id", _CODES, nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("answer", pa.large_string()),
        pa.field("spelling", pa.large_string()),
        pa.field("correct", pa.bool_(), nullable=False),
        pa.field("status", _CODES, nullable=False),
        pa.field("extracted_by", _CODES),
        pa.field("tokens", pa.int32()),
        pa.field("logprob", pa.float64()),
        pa.field("base_logprob", pa.float64()),
        pa.field("entropy", pa.float64()),
        # large_string: a few million completions pass the 2 GiB that 32-bit offsets can address.
        pa.field("completion", pa.large_string()),
        pa.field("truncated", pa.bool_()),
    ]
)
_REQUIRED = ("problem_id", "index", "answer", "correct", "status")


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion with its verdict; None means unknown.

    `logprob` is the sum over its tokens, `base_logprob` the same sum under the base model, `entropy` the mean over its
    tokens of the entropy of the next-token distribution, `spelling` how the answer was written (see `Verdict`),
    `truncated` whether the length limit ended it.
    """

    problem_id: str
    index: int
    answer: str | None
    correct: bool
    status: Status
    extracted_by: str = ""
    tokens: int | None = None
    logprob: float | None = None
    base_logprob: float | None = None
    entropy: float | None = None
    completion: str | None = None
    spelling: str | None = None
    truncated: bool | None = None

    @classmethod
    def judged(cls, problem_id: str, index: int, verdict: Verdict, **measured: Any) -> "Sample":
        """A sample with the fields of its verdict."""
        judged = (verdict.answer, verdict.correct, verdict.status, verdict.extracted_by)
        return cls(problem_id, index, *judged, spelling=verdict.spelling, **measured)


def rows_table(rows: pa.Table | Mapping[str, Any] | Sequence[Sample]) -> pa.Table:
    """Rows in any accepted form as a checked table of SCHEMA; columns that may be unknown may be absent.

    Columns are lists, numpy or arrow arrays. NaN means unknown and is stored as null, like None.
    """
    columns = _columns(rows)
    unknown = [name for name in columns if name not in SCHEMA.names]
    absent = [name for name in _REQUIRED if name not in columns]
    if unknown or absent:
        raise PoolError(f"samples to append: missing columns {absent}, unknown columns {unknown}; have {SCHEMA.names}")
    count = len(columns["problem_id"])
    arrays = [
        _array(columns[field.name], field) if field.name in columns else pa.nulls(count, field.type) for field in SCHEMA
    ]
    ragged = {name: len(array) for name, array in zip(SCHEMA.names, arrays, strict=True) if len(array) != count}
    if ragged:
        raise PoolError(f"samples to append: {count} problem ids but {ragged}")
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    _check_values(table)
    return table


def _columns(rows: pa.Table | Mapping[str, Any] | Sequence[Sample]) -> dict[str, Any]:
    if isinstance(rows, pa.Table):
        return {name: rows.column(name) for name in rows.column_names}
    if isinstance(rows, Mapping):
        return dict(rows)
    return {item.name: [getattr(row, item.name) for row in rows] for item in fields(Sample)}


def _array(values: Any, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    try:
        array = _arrow_array(values, field.type)
        return pc.if_else(pc.is_nan(array), None, array) if pa.types.is_floating(field.type) else array
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise PoolError(f"samples to append: column {field.name!r} is not {field.type}: {error}") from error


def _arrow_array(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        values.validate(full=True)  # text that another tool put into arrow may not be UTF-8
        if pa.types.is_dictionary(kind) and values.type != kind:
            return values.cast(kind.value_type).dictionary_encode()
        return values.cast(kind)
    try:
        if pa.types.is_dictionary(kind) and isinstance(values, np.ndarray):
            return pa.array(values, type=kind.value_type).dictionary_encode()
        return pa.array(values, type=kind)
    except UnicodeEncodeError:
        return pa.array([valid_text(value) if isinstance(value, str) else value for value in values], type=kind)


def _check_values(table: pa.Table) -> None:
    empty = [field.name for field in SCHEMA if not field.nullable and table.column(field.name).null_count]
    if empty:
        raise PoolError(f"samples to append: {', '.join(empty)} must be given for every sample")
    known = get_args(Status)
    strange = set(pc.unique(table.column("status")).to_pylist()) - set(known)
    if strange:
        raise PoolError(f"samples to append: unknown status {sorted(strange)}; have {', '.join(known)}")
