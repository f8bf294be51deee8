"""A format is recognized by its columns or refused by name; a hostile line costs its line, not the memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.convert import formats
from offleash.eval.convert.formats import FORMATS, OPTIONS, recognize
from offleash.eval.convert.importer import import_samples
from offleash.eval.errors import ConfigError

Maker = Callable[..., Any]
VERL = {"input": "q", "output": "a", "gts": "1", "score": 1.0, "step": 5}


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
def test_every_format_is_recognized_by_its_columns_and_by_no_other(known: Any) -> None:
    assert recognize(set(known.columns), "here") is known
    for option in known.options:
        assert recognize(set(known.columns) | {"more"}, "here", option) is known


def test_the_options_are_those_that_the_command_promises() -> None:
    promised = "auto verl prime-rl verifiers skyrl trl inspect lm-eval lighteval jsonl"
    assert sorted(OPTIONS) == sorted(promised.split())


def test_columns_of_two_formats_are_ambiguous_until_one_is_chosen(write_lines: Maker, tmp_path: Path) -> None:
    path = write_lines("both.jsonl", [{**VERL, "problem_id": "p", "completion": "a", "correct": False}])
    with pytest.raises(
        ConfigError, match=r"both\.jsonl, line 1, could be verl or offleash, .*--format \(verl, jsonl\)"
    ):
        import_samples(path, tmp_path / "pool")
    assert import_samples(path, tmp_path / "verl", option="verl").correct == 1
    native = {**VERL, "problem_id": "p", "completion": "a", "correct": False}
    assert import_samples(write_lines("own.jsonl", [native]), tmp_path / "own", option="jsonl").correct == 0


def test_the_wrong_format_is_refused_with_what_was_found(write_lines: Maker, tmp_path: Path) -> None:
    path = write_lines("5.jsonl", [VERL])
    with pytest.raises(
        ConfigError, match=r"gts, input, output, score, step, not those of --format skyrl: skyrl \(input_p"
    ):
        import_samples(path, tmp_path / "pool", option="skyrl")
    with pytest.raises(ConfigError, match="unknown format 'csv': use one of auto, verl"):
        import_samples(path, tmp_path / "pool", option="csv")
    with pytest.raises(ConfigError, match=r"strange\.jsonl, line 1, has the columns text, which match no known format"):
        import_samples(write_lines("strange.jsonl", [{"text": "x"}]), tmp_path / "pool")


def test_files_of_two_formats_are_not_added_up(write_lines: Maker, tmp_path: Path) -> None:
    other = {"input_prompt": "q", "output_response": "a", "score": 1.0, "stop_reason": "stop"}
    paths = [write_lines("a.jsonl", [VERL]), write_lines("b.jsonl", [other])]
    with pytest.raises(ConfigError, match=r"a\.jsonl is verl and .*b\.jsonl is skyrl: import one format at a time"):
        import_samples(paths, tmp_path / "pool")


HOSTILE = [
    ("[" * 200_000, "line 2 is not JSON"),
    ('{"input": ' + '{"a": ' * 100_000, "line 2 is not JSON"),
    ('{"input": "q", "output": "a", "score": ' + "9" * 10_000 + "}", "line 2 is not JSON"),
    ('{"input": "q", "output": "a", "score": 1e999, "step": 5}', "line 2 score is inf, neither 0 nor 1"),
    ('{"input": "q", "output": "a", "score": -Infinity, "step": 5}', "line 2 score is -inf"),
    ('{"input": "q", "output": "a", "score": NaN, "step": 5}', "line 2 score is missing"),
    ('{"input": "\\ud800", "output": "a", "score": 1, "gts": "\\ud800", "step": 5}', "line 2 gold holds a lone"),
    ('{"input": "q", "output": [1, 2], "score": 1, "step": 5}', "line 2 completion must be text"),
    ('{"input": [], "output": "a", "score": 1, "step": 5}', "line 2 input must be text or chat messages"),
    ('{"input": "q", "output": "a", "score": 1, "step": 1e300}', "line 2 step must be an integer"),
    ("{", "line 2 starts a JSON value of several lines.*inspect log convert"),
    ("\ufeff{}", "line 2 has no input, output, score"),
]


@pytest.mark.parametrize(("line", "message"), HOSTILE)
def test_a_hostile_line_is_named_and_nothing_is_written(
    line: str, message: str, write_lines: Maker, tmp_path: Path
) -> None:
    path = write_lines("5.jsonl", [VERL, line])
    with pytest.raises(ConfigError, match=message):
        import_samples(path, tmp_path / "pool")
    assert [one.name for one in tmp_path.iterdir()] == ["5.jsonl"]


def test_a_line_without_end_is_not_read_to_its_end(
    tmp_path: Path, write_lines: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LINE_BYTES", 1000)
    path = write_lines("5.jsonl", [VERL, json.dumps({**VERL, "output": "x" * 2000})])
    with pytest.raises(ConfigError, match=r"5\.jsonl: line 2 is longer than 1,000 bytes"):
        import_samples(path, tmp_path / "pool")


def test_a_folder_that_is_no_dataset_and_a_file_without_rows(tmp_path: Path, write_lines: Maker) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"folder is a folder but not a dataset .*name the files in it"):
        import_samples(tmp_path / "folder", tmp_path / "pool")
    with pytest.raises(ConfigError, match=r"empty\.jsonl has no samples"):
        import_samples([write_lines("5.jsonl", [VERL]), write_lines("empty.jsonl", [])], tmp_path / "pool")
