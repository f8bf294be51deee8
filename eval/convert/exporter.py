"""Writing a pool's samples as a Hugging Face dataset, or as one JSONL or parquet file.

One row per sample and its problem. Only the dataset keeps how the pool was sampled and verified.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offleash.eval.convert.readers.values import as_prompt, prompt_text
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.files import atomic_path
from offleash.eval.pool.pool import Pool

_SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("index", pa.int32()),
        ("completion", pa.large_string()),
        ("answer", pa.large_string()),
        ("spelling", pa.large_string()),
        ("correct", pa.bool_()),
        ("status", pa.string()),
        ("extracted_by", pa.string()),
        ("tokens", pa.int32()),
        ("logprob", pa.float64()),
        ("base_logprob", pa.float64()),
        ("entropy", pa.float64()),
        ("truncated", pa.bool_()),
        ("gold", pa.large_string()),
        ("meta", pa.large_string()),
        ("all_answers", pa.list_(pa.string())),
        ("prompt", pa.large_string()),
    ]
)
_SAMPLE_COLUMNS = _SCHEMA.names[: _SCHEMA.names.index("gold")]


def export_samples(pool: Pool, to: Path, *, prompts: bool = True) -> int:
    """Write all samples and return their number; `to` is written atomically. `prompts=False` leaves prompts out."""
    if to.exists():
        raise ConfigError(f"{to} already exists: choose another name")
    if to.suffix not in ("", ".jsonl", ".parquet"):
        raise ConfigError(
            f"{to}: a file must end in .jsonl or .parquet; a name without a suffix becomes a dataset folder"
        )
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        writer = {".jsonl": _write_jsonl, ".parquet": _write_parquet}.get(to.suffix, _write_dataset)
        schema = _SCHEMA if prompts else _SCHEMA.remove(_SCHEMA.get_field_index("prompt"))
        with atomic_path(to) as temporary:
            return writer(pool, temporary, schema)
    except OSError as error:
        raise PoolError(f"cannot write {to}: {error.strerror or error}") from error
    except UnicodeEncodeError as error:
        raise PoolError(
            f"cannot write {to}: a problem's gold or answers are not valid text ({error.reason})"
        ) from error


def _tables(pool: Pool, schema: pa.Schema) -> Iterator[pa.Table]:
    """The samples in chunks of bounded size, joined with their problems."""
    beside = _problem_table(pool).select(schema.names[len(_SAMPLE_COLUMNS) :])
    for chunk in pool.scan(_SAMPLE_COLUMNS):
        joined = beside.take(pa.array(chunk.problem_r))
        yield pa.table([*chunk.columns.columns, *joined.columns], names=schema.names).cast(schema)


def _problem_table(pool: Pool) -> pa.Table:
    rows = [
        {
            "gold": problem.gold,
            "meta": json.dumps(problem.meta),
            "all_answers": None if answers is None else list(answers),
            "prompt": prompt_text(problem.prompt),
        }
        for problem, answers in zip(pool.problems, pool.answers, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([_SCHEMA.field(name) for name in rows[0]]))


def _write_jsonl(pool: Pool, path: Path, schema: pa.Schema) -> int:
    rows = 0
    # Half of a surrogate pair, which JSON can hold and UTF-8 cannot, is written as JSON escapes it.
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for table in _tables(pool, schema):
            for row in table.to_pylist():
                file.write(json.dumps(_readable(row), ensure_ascii=False) + "\n")
            rows += table.num_rows
    return rows


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Prompt and metadata as JSON values instead of JSON in a string; unknown values are omitted, except the answer."""
    row = {key: value for key, value in row.items() if value is not None or key == "answer"}
    row["meta"] = json.loads(row["meta"])
    if isinstance(messages := as_prompt(row.get("prompt")), list):
        row["prompt"] = messages
    return row


def _write_parquet(pool: Pool, path: Path, schema: pa.Schema) -> int:
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in _tables(pool, schema):
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _write_dataset(pool: Pool, path: Path, schema: pa.Schema) -> int:
    import datasets

    path.mkdir()
    rows = _write_parquet(pool, path / "samples.parquet", schema)
    data = datasets.Dataset.from_parquet(str(path / "samples.parquet"), cache_dir=str(path / "cache"))
    data.save_to_disk(str(path / "made"))
    for file in (path / "made").iterdir():
        file.replace(path / file.name)
    for leftover in ("samples.parquet", "cache", "made"):
        gone = path / leftover
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    about = json.loads((pool.path / "pool.json").read_text(encoding="utf-8"))
    about["problem_ids"] = pool.problem_ids
    (path / "pool.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
    return rows
