"""Samples of lm-evaluation-harness: a filter and a score are chosen, never guessed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.convert.importer import import_samples
from offleash.eval.convert.readers.record import Reading
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool


def lm_row(doc: int, replies: list[str], filtered: list[Any], score: Any, name: str = "strict-match") -> dict[str, Any]:
    return {
        "doc_id": doc,
        "doc": {"question": f"Question {doc}?", "answer": f"... #### {doc}"},
        "target": f"... #### {doc}",
        "arguments": {"gen_args_0": {"arg_0": f"Q: Question {doc}?\nA:", "arg_1": {"until": ["Q:"]}}},
        "resps": [replies],
        "filtered_resps": filtered,
        "filter": name,
        "metrics": ["exact_match"],
        "doc_hash": "h",
        "prompt_hash": "h",
        "target_hash": "h",
        "exact_match": score,
    }


def test_lm_eval_samples(tmp_path: Path, write_lines: Callable[..., Path]) -> None:
    rows = [lm_row(0, ["It is 0"], ["0"], 1.0), lm_row(1, ["It is 7"], ["[invalid]"], 0.0)]
    made = import_samples(write_lines("samples_gsm8k.jsonl", rows), tmp_path / "pool")
    assert (made.format, made.problems, made.correct) == ("lm-eval", 2, 1)
    pool = Pool.open(tmp_path / "pool")
    assert [(row["answer"], row["status"]) for row in pool.read(["answer", "status"]).to_pylist()] == [
        ("0", "ok"),
        (None, "no_answer"),
    ]
    assert (pool.problems[1].id, pool.problems[1].prompt) == ("1", "Q: Question 1?\nA:")


def test_lm_eval_filters_and_repeats_must_be_chosen(tmp_path: Path, write_lines: Callable[..., Path]) -> None:
    two = [lm_row(0, ["0"], ["0"], 1.0), lm_row(0, ["0"], ["1"], 0.0, "flexible-extract")]
    path = write_lines("two.jsonl", two)
    with pytest.raises(ConfigError, match=r"2 filters \(flexible-extract, strict-match\): choose one with --filter"):
        import_samples(path, tmp_path / "pool")
    assert import_samples(path, tmp_path / "pool", reading=Reading(filter="flexible-extract")).correct == 0
    with pytest.raises(ConfigError, match="filter 'x'"):
        import_samples(path, tmp_path / "other", reading=Reading(filter="x"))
    many = write_lines("many.jsonl", [lm_row(0, ["0", "1"], [["0", "1"]], 1.0)])
    with pytest.raises(ConfigError, match="line 1 2 completions share one exact_match: name a --task"):
        import_samples(many, tmp_path / "other")
    each = write_lines("each.jsonl", [lm_row(0, ["0", "1"], [["0", "1"]], [1, 0])])
    assert import_samples(each, tmp_path / "other").correct == 1
    several = [{**lm_row(0, ["0"], ["0"], 1.0), "metrics": ["exact_match", "f1"], "f1": 0.25}]
    with pytest.raises(ConfigError, match=r"2 scores \(exact_match, f1\): .*--correct"):
        import_samples(write_lines("several.jsonl", several), tmp_path / "third")
    with pytest.raises(ConfigError, match=r"f1 is 0\.25, neither 0 nor 1"):
        import_samples(tmp_path / "several.jsonl", tmp_path / "third", reading=Reading(correct="f1"))
    chosen = Reading(correct="f1", threshold=0.2)
    assert import_samples(tmp_path / "several.jsonl", tmp_path / "third", reading=chosen).correct == 1
    likely = write_lines("likely.jsonl", [lm_row(0, [[-1.5, False]], ["x"], 1.0)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="resps"):
        import_samples(likely, tmp_path / "fourth")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": 5}, "line 1 cannot be read as lm-eval .TypeError"),
        ({"arguments": [{"x": 1}]}, "line 1 cannot be read as lm-eval .KeyError"),
    ],
)
def test_rows_in_a_shape_nobody_expected_are_named(
    change: Any, message: str, tmp_path: Path, write_lines: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match=message):
        import_samples(write_lines("in.jsonl", [{**lm_row(0, ["0"], ["0"], 1.0), **change}]), tmp_path / "pool")
