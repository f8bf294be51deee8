"""Details of lighteval, of its present version and of those before 0.10."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offleash.eval.convert.importer import import_samples
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_lighteval_details(tmp_path: Path) -> None:
    rows = [
        {
            "doc": {"query": "2 + 2?", "choices": [" 4"], "gold_index": 0, "id": "", "task_name": "gsm8k"},
            "model_response": {"input": "2 + 2?", "text": ["It is 4", "It is 5"], "output_tokens": [[1, 2, 3], [1]]},
            "metric": {"extractive_match": [1.0, 0.0]},
        }
    ]
    made = import_samples(parquet(tmp_path / "details.parquet", rows), tmp_path / "pool")
    assert (made.format, made.samples, made.correct) == ("lighteval", 2, 1)
    pool = Pool.open(tmp_path / "pool")
    assert [
        (row["completion"], row["tokens"], row["status"])
        for row in pool.read(["completion", "tokens", "status"]).to_pylist()
    ] == [
        ("It is 4", 3, "ok"),
        ("It is 5", 1, "ok"),
    ]
    assert (pool.problems[0].prompt, pool.problems[0].gold) == ("2 + 2?", "4")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {
                "doc": {"query": "q", "choices": 5, "gold_index": 0},
                "model_response": {"text": ["4"]},
                "metric": {"m": 1},
            },
            "line 1 choices must be a list, got 5",
        ),
        (
            {"doc": {"query": "q"}, "model_response": {"text": ["4"], "output_tokens": 5}, "metric": {"m": 1}},
            "line 1 cannot be read as lighteval .TypeError",
        ),
    ],
)
def test_rows_in_a_shape_nobody_expected_are_named(
    row: Any, message: str, tmp_path: Path, write_lines: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match=message):
        import_samples(write_lines("in.jsonl", [row]), tmp_path / "pool")


def test_older_lighteval_details(tmp_path: Path) -> None:
    rows = [
        {
            "example": "2 + 2?", "full_prompt": "Solve: 2 + 2?", "predictions": "['It is 4']", "gold": "['4']",
            "metrics": {"em": 1.0}, "num_asked_few_shots": 0,
        }
    ]  # fmt: skip
    made = import_samples(parquet(tmp_path / "details.parquet", rows), tmp_path / "pool")
    assert (made.format, made.correct) == ("lighteval (before 0.10)", 1)
    assert Pool.open(tmp_path / "pool").problems[0].prompt == "Solve: 2 + 2?"
