"""Files of any size are read twice in bounded memory, and not if they change between the two readings."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offleash.eval.convert import files, formats
from offleash.eval.convert.importer import import_samples
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool


@pytest.mark.long
def test_completions_are_not_all_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "in.jsonl").open("w") as file:
        for i in range(300):
            row = {"problem_id": "a", "prompt": "p" * 100_000, "completion": str(i) * 50_000, "correct": i % 3 == 0}
            file.write(json.dumps(row) + "\n")
    monkeypatch.setattr(files, "PART_CHARS", 1_000_000)
    tracemalloc.start()
    made = import_samples(tmp_path / "in.jsonl", tmp_path / "pool")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (made.samples, made.correct) == (300, 100)
    assert peak < 30_000_000  # of 75 MB
    rows = Pool.open(tmp_path / "pool").read(["index", "completion"]).to_pylist()
    assert rows == [{"index": i, "completion": str(i) * 50_000} for i in range(300)]


@pytest.mark.long
def test_a_parquet_file_is_decoded_in_pieces_that_fit_whatever_it_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One megabyte, named in each of a thousand rows: a file of a few kilobytes."""
    path = tmp_path / "in.parquet"
    rows = [{"problem_id": "a", "completion": "x" * 1_000_000, "correct": True}] * 1000
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert path.stat().st_size < 300_000
    monkeypatch.setattr(formats, "BATCH_BYTES", 10_000_000)
    with pq.ParquetFile(path) as file:
        assert 1 <= formats._batch_rows(file, path) <= 10
    monkeypatch.setattr(formats, "GROUP_BYTES", 500_000)
    with pytest.raises(ConfigError, match="smaller row groups"):
        import_samples(path, tmp_path / "pool")


def test_a_file_that_changes_between_the_two_readings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_lines: Callable[..., Path]
) -> None:
    rows = [{"problem_id": "a", "index": i, "completion": "4", "correct": True} for i in range(4)]
    source = write_lines("in.jsonl", rows)
    longer = [*formats.numbered_rows(source), (9, rows[0])]
    monkeypatch.setattr(files, "numbered_rows", lambda path, end: iter(longer))
    with pytest.raises(ConfigError, match="changed while it was read, at line 9"):
        import_samples(source, tmp_path / "pool")
    monkeypatch.setattr(files, "numbered_rows", lambda path, end: iter(longer[:3]))
    with pytest.raises(ConfigError, match="changed while it was read: it ends before line 4"):
        import_samples(source, tmp_path / "pool")
    assert not (tmp_path / "pool").exists()


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.jsonl")
    with pytest.raises(ConfigError, match="pipe"):
        import_samples(tmp_path / "in.jsonl", tmp_path / "pool")
