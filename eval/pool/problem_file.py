"""The problems of a pool on disk, with all their correct answers where a task can list them: a pool explains itself."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offleash.eval.errors import PoolError
from offleash.eval.files import write_atomic
from offleash.eval.pool.store import valid_text
from offleash.eval.problem import Problem

Answers = Sequence[Sequence[str] | None]
"""Per problem all its correct answer classes, or None where they are not listed."""

_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("gold", pa.string(), nullable=False),
        pa.field("meta", pa.string(), nullable=False),
        pa.field("answers", pa.list_(pa.string())),
    ]
)


def write_problems(path: Path, problems: Sequence[Problem], answers: Answers) -> None:
    """Prompt and metadata are kept as JSON. Raises PoolError for problems that could not be told apart or read back."""
    if len(answers) != len(problems):
        raise PoolError(f"{len(problems)} problems but {len(answers)} lists of correct answers: give one per problem")
    if not problems:
        raise PoolError("a pool needs at least one problem: the task has none")
    doubled = [name for name, count in Counter(problem.id for problem in problems).items() if count > 1]
    if doubled:
        raise PoolError(f"{len(doubled)} problem ids occur more than once, e.g. {doubled[0]!r}: make them unique")
    rows = [_row(problem, listed) for problem, listed in zip(problems, answers, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), sink, compression="zstd", write_page_checksum=True)
    write_atomic(path, memoryview(sink.getvalue()))


def _row(problem: Problem, answers: Sequence[str] | None) -> dict[str, Any]:
    for name in ("id", "gold"):
        if valid_text(getattr(problem, name)) != getattr(problem, name):
            raise PoolError(f"problem {problem.id!r}: its {name} holds a lone surrogate and cannot be stored")
    listed = None if answers is None else [valid_text(answer) for answer in answers]
    if listed is not None and len(set(listed)) < len(listed):
        raise PoolError(f"problem {problem.id!r}: its list of correct answers repeats one; list each class once")
    try:
        prompt, meta = json.dumps(problem.prompt), json.dumps(problem.meta)
    except (TypeError, ValueError) as error:
        raise PoolError(f"problem {problem.id!r}: prompt or metadata cannot be written as JSON: {error}") from error
    return {"id": problem.id, "prompt": prompt, "gold": problem.gold, "meta": meta, "answers": listed}


def read_problems(path: Path) -> tuple[list[Problem], list[tuple[str, ...] | None]]:
    """The problems in order and their listed answers. Raises PoolError if the file is missing or damaged."""
    try:
        rows = pq.read_table(path, page_checksum_verification=True).to_pylist()
        problems = [Problem(row["id"], json.loads(row["prompt"]), row["gold"], json.loads(row["meta"])) for row in rows]
        answers = [None if row["answers"] is None else tuple(row["answers"]) for row in rows]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise PoolError(f"{path} is missing or damaged ({reason}); restore it or draw a new pool") from error
    return problems, answers
