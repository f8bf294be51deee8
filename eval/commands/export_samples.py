"""Write a pool's samples as a Hugging Face dataset, or as one JSONL or parquet file.

    offleash export POOL --to DIR                a dataset: datasets.load_from_disk(DIR)
    offleash export POOL --to samples.jsonl      or samples.parquet

One row per sample, with its problem's prompt (chat messages as JSON), gold, metadata and all correct answers where they
are listed. `offleash import` reads each of the three back; only the dataset keeps how the pool was sampled and judged,
so that what is read back can be compared with its origin.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.files import atomic_path
from offleash.eval.pool.pool import Pool

SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("index", pa.int32()),
        ("completion", pa.large_string()),
        ("answer", pa.large_string()),
        ("correct", pa.bool_()),
        ("status", pa.string()),
        ("extracted_by", pa.string()),
        ("tokens", pa.int32()),
        ("logprob", pa.float64()),
        ("base_logprob", pa.float64()),
        ("entropy", pa.float64()),
        ("gold", pa.large_string()),
        ("meta", pa.large_string()),
        ("all_answers", pa.list_(pa.string())),
        ("prompt", pa.large_string()),
    ]
)
SAMPLE_COLUMNS = SCHEMA.names[: SCHEMA.names.index("gold")]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="offleash export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pool", metavar="POOL", help="a pool's folder")
    parser.add_argument("--to", required=True, metavar="DIR|FILE", help="a folder, or a .jsonl or .parquet file")
    parser.add_argument("--no-prompts", action="store_true", help="leave prompts out (images make them large)")
    options = parser.parse_args(words)
    rows = export_samples(Pool.open(options.pool), Path(options.to), prompts=not options.no_prompts)
    print(f"{rows} samples of {options.pool} -> {options.to}")
    return 0


def export_samples(pool: Pool, to: Path, *, prompts: bool = True) -> int:
    """Write the samples and return how many; the target appears complete, or not at all."""
    if to.exists():
        raise ConfigError(f"{to} exists: choose another name")
    if to.suffix not in ("", ".jsonl", ".parquet"):
        raise ConfigError(f"{to}: a file ends in .jsonl or .parquet; a name without an ending becomes a dataset folder")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        writer = {".jsonl": write_jsonl, ".parquet": write_parquet}.get(to.suffix, write_dataset)
        with atomic_path(to) as temporary:
            return writer(pool, temporary, prompts)
    except OSError as error:
        raise PoolError(f"cannot write {to}: {error.strerror or error}") from error


def tables(pool: Pool, prompts: bool) -> Iterator[pa.Table]:
    """The samples in chunks of bounded size, each beside its problem."""
    beside = problem_table(pool, prompts)
    schema = pa.schema([field for field in SCHEMA if prompts or field.name != "prompt"])
    for chunk in pool.scan(SAMPLE_COLUMNS):
        columns = {name: plain(chunk.columns.column(name)) for name in SAMPLE_COLUMNS}
        joined = beside.take(pa.array(chunk.problem_r))
        columns |= {name: joined.column(name) for name in joined.column_names}
        yield pa.table([columns[name] for name in schema.names], names=schema.names).cast(schema)


def plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def problem_table(pool: Pool, prompts: bool) -> pa.Table:
    rows = [
        {
            "gold": problem.gold,
            "meta": json.dumps(problem.meta),
            "all_answers": None if answers is None else list(answers),
            "prompt": problem.prompt if isinstance(problem.prompt, str) else json.dumps(problem.prompt),
        }
        for problem, answers in zip(pool.problems, pool.answers, strict=True)
    ]
    schema = pa.schema([SCHEMA.field(name) for name in rows[0] if prompts or name != "prompt"])
    return pa.Table.from_pylist(rows, schema=schema)


def write_jsonl(pool: Pool, path: Path, prompts: bool) -> int:
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for table in tables(pool, prompts):
            for row in table.to_pylist():
                file.write(json.dumps(readable(row), ensure_ascii=False) + "\n")
            rows += table.num_rows
    return rows


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Prompt and metadata as JSON itself, not as JSON in a string; what is unknown left out, except an answer."""
    row = {key: value for key, value in row.items() if value is not None or key == "answer"}
    row["meta"] = json.loads(row["meta"])
    if row.get("prompt", "").startswith('[{"'):
        row["prompt"] = json.loads(row["prompt"])
    return row


def write_parquet(pool: Pool, path: Path, prompts: bool) -> int:
    rows = 0
    schema = pa.schema([field for field in SCHEMA if prompts or field.name != "prompt"])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in tables(pool, prompts):
            writer.write_table(table)
            rows += table.num_rows
    return rows


def write_dataset(pool: Pool, path: Path, prompts: bool) -> int:
    import datasets

    path.mkdir()
    rows = write_parquet(pool, path / "samples.parquet", prompts)
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
