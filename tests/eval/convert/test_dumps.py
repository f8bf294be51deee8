"""A file that is still being written is read up to its last complete line, and never half a sample."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offleash.eval.convert.dumps import complete_part, read_dump
from offleash.eval.convert.importer import import_samples
from offleash.eval.convert.readers.record import Reading
from offleash.eval.errors import ConfigError

Maker = Callable[..., Any]
ROWS = [{"input": f"q{i % 2}", "output": f"{i} é", "gts": "1", "score": float(i % 3 == 0), "step": 5} for i in range(6)]


def test_every_cut_of_a_growing_file_gives_the_complete_lines_before_it(write_lines: Maker) -> None:
    whole = write_lines("5.jsonl", ROWS)
    content = whole.read_bytes()
    for cut in range(len(content) + 1):
        whole.write_bytes(content[:cut])
        dump = read_dump(whole)
        lines = content[:cut].count(b"\n")
        assert [record.completion for record in dump.records] == [row["output"] for row in ROWS[:lines]]
        assert [record.correct for record in dump.records] == [row["score"] == 1 for row in ROWS[:lines]]
        assert (dump.end, dump.is_whole) == (content[:cut].rfind(b"\n") + 1, cut == content[:cut].rfind(b"\n") + 1)
        assert dump.steps == ([5] if lines else [])
        assert (dump.format is None) == (lines == 0)


def test_what_was_complete_can_be_imported_while_the_file_grows(write_lines: Maker, tmp_path: Path) -> None:
    path = write_lines("5.jsonl", ROWS[:4])
    with path.open("ab") as file:
        file.write(b'{"input": "q0", "outp')
    dump = read_dump(path)
    with pytest.raises(ConfigError, match="line 5 is not JSON"):
        import_samples(path, tmp_path / "pool")
    with path.open("ab") as file:
        file.write(b'ut": "late", "gts": "1", "score": 1.0, "step": 5}\n')
    made = import_samples(path, tmp_path / "pool", ends={path: dump.end})
    assert (made.samples, made.correct) == (4, 2)
    assert read_dump(path).records[-1].completion == "late"


def test_a_complete_line_that_is_invalid_is_an_error_at_once(write_lines: Maker) -> None:
    path = write_lines("5.jsonl", [ROWS[0], "{broken", ROWS[1]])
    with pytest.raises(ConfigError, match=r"5\.jsonl: 1 of 3 lines are invalid: line 2 is not JSON"):
        read_dump(path)


def test_the_choices_of_a_reading_are_those_of_import(write_lines: Maker) -> None:
    path = write_lines("5.jsonl", [{**ROWS[0], "f1": 0.4}])
    (record,) = read_dump(path, Reading(correct="f1", threshold=0.5)).records
    assert (record.correct, record.judged_by) == (False, "f1")
    with pytest.raises(ConfigError, match="not those of --format trl"):
        read_dump(path, option="trl")


def test_parquet_and_archives_have_no_samples_before_they_are_complete(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"step": 3, "prompt": "q", "completion": "a", "right": 1.0, "advantage": 0.0}])
    pq.write_table(table, tmp_path / "completions_00003.parquet")
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("header.json", '{"status": "success", "eval": {"task": "t", "model": "m"}}')
    for path in (tmp_path / "completions_00003.parquet", tmp_path / "log.eval"):
        content = path.read_bytes()
        for cut in (0, 4, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:cut])
            dump = read_dump(path)
            assert (dump.format, dump.records, dump.end, dump.is_whole) == (None, [], 0, False)
        path.write_bytes(content)
        assert read_dump(path).is_whole
    assert read_dump(tmp_path / "completions_00003.parquet").steps == [3]


def test_a_line_longer_than_a_piece_is_found_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"x" * 100 + b"\n" + b"y" * 200_000)
    assert complete_part(path) == (101, False)
    with pytest.raises(ConfigError, match="cannot read"):
        complete_part(tmp_path / "none.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ConfigError, match=r"pipe\.jsonl is not a regular file"):
        read_dump(tmp_path / "pipe.jsonl")
