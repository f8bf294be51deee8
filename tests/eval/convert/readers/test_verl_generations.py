"""verl's dumps: a problem is its input, the verdict verl's own, and every doubt is an error that names the columns."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.convert.readers.record import Reading
from offleash.eval.errors import ConfigError

Maker = Callable[..., Any]


def row(question: str, output: str, score: Any, step: int = 100, **extras: Any) -> dict[str, Any]:
    """As verl's trainer writes it: the chat template without its special tokens."""
    return {
        "input": f"system\nYou are helpful.\nuser\n{question}\nassistant\n",
        "output": output,
        "gts": "4",
        "score": score,
        "step": step,
        "reward": score,
        **extras,
    }


ROWS = [
    row("2+2?", "It is <b>4</b> & <script>alert(1)</script>", 1.0),
    row("3+1?", "\U0001f600 vier é \u0000", 1.0),
    row("2+2?", "5", 0.0),
    row("2+2?", "4.", 1.0),
    row("3+1?", "5", 0.0),
    row("2+2?", "", 0.0),
]


def test_hits_and_pass_at_1_are_those_counted_by_hand(write_lines: Maker, pool_of: Maker, pass_at_1: Maker) -> None:
    made, pool = pool_of(write_lines("100.jsonl", ROWS), reading=Reading(correct="score"))
    assert (made.format, made.problems, made.samples, made.correct, made.step) == ("verl", 2, 6, 3, 100)
    by_question = {prompt.split("\n")[3]: value for prompt, value in pass_at_1(pool).items()}
    assert by_question == {"2+2?": 2 / 4, "3+1?": 1 / 2}
    assert {problem.gold for problem in pool.problems} == {"4"}
    assert (pool.spec.revision, pool.spec.k) == ("step-100", 4)


def test_completions_are_kept_as_they_are_in_the_order_of_the_file(write_lines: Maker, pool_of: Maker) -> None:
    _, pool = pool_of(write_lines("100.jsonl", ROWS))
    rows = pool.read(["problem_id", "index", "completion"]).to_pylist()
    for problem in pool.problems:
        kept = [(one["index"], one["completion"]) for one in rows if one["problem_id"] == problem.id]
        assert kept == list(enumerate(one["output"] for one in ROWS if one["input"] == problem.prompt))


def test_the_order_of_the_lines_changes_no_number(write_lines: Maker, pool_of: Maker, pass_at_1: Maker) -> None:
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    _, one = pool_of(write_lines("100.jsonl", ROWS), "one")
    _, other = pool_of(write_lines("shuffled.jsonl", shuffled), "other")
    assert pass_at_1(one) == pass_at_1(other)
    assert one.spec.problems == other.spec.problems


def test_the_accuracy_is_the_verdict_where_verl_has_one(write_lines: Maker, pool_of: Maker) -> None:
    dapo = [row("2+2?", "4", 1.0, acc=True, pred="4"), row("2+2?", "5", -1.0, acc=False, pred="[INVALID]")]
    made, pool = pool_of(write_lines("1.jsonl", dapo), reading=Reading(answer="pred"))
    assert (made.correct, made.judged_by) == (1, "acc")
    assert pool.read(["answer", "status"]).to_pylist() == [
        {"answer": "4", "status": "ok"},
        {"answer": None, "status": "no_answer"},
    ]
    made, _ = pool_of(write_lines("1.jsonl", dapo), "by-score", reading=Reading(correct="score", threshold=0.5))
    assert (made.correct, made.judged_by) == (1, "score")


@pytest.mark.parametrize(
    ("rows", "reading", "message"),
    [
        ([row("a", "b", 0.5)], Reading(), "line 1 score is 0.5, neither 0 nor 1: .*--threshold"),
        ([row("a", "b", float("nan"))], Reading(), "line 1 score is missing"),
        ([row("a", "b", None)], Reading(), "line 1 score is missing"),
        ([{**row("a", "b", 1.0), "score": "1"}], Reading(), "line 1 score must be a number, got '1'"),
        ([row("a", "b", 1.0, acc=1), row("a", "b", 1.0)], Reading(), "judged by acc and score in different lines"),
        ([row("a", "b", 1.0, f1=0.5)], Reading(correct="em"), "line 1 has no score 'em'; it has score, reward, f1"),
        ([row("a", "b", 1.0, pred="4")], Reading(answer="x"), "line 1 has no column 'x' .*it has reward, pred"),
        ([row("a", "b", 1.0), {"input": "a", "output": "b"}], Reading(), "line 2 has no score"),
        ([{**row("a", "b", 1.0), "input": None}], Reading(), "line 1 input must be text or chat messages, got None"),
        ([{**row("a", "b", 1.0), "output": None}], Reading(), "line 1 output is missing"),
        ([row("a", "b", 1.0), {**row("a", "b", 1.0), "gts": "5"}], Reading(), "line 2 gives problem .* different gold"),
        ([row("a", "b", 1.0, step=-1)], Reading(), "line 1 step must be an integer"),
    ],
)  # fmt: skip
def test_bad_lines_are_named_and_nothing_is_written(
    rows: list[Any], reading: Reading, message: str, write_lines: Maker, pool_of: Maker, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        pool_of(write_lines("100.jsonl", rows), reading=reading)
    assert [path.name for path in tmp_path.iterdir()] == ["100.jsonl"]


def test_text_and_chat_prompts_stand_side_by_side(write_lines: Maker, pool_of: Maker) -> None:
    chat = [{"role": "user", "content": "2+2?", "name": None}]
    like_chat = '[{"role": "user", "content": "2+2?"}]'
    rows = [{**ROWS[0], "input": prompt} for prompt in (chat, chat, like_chat, "2+2?")]
    made, pool = pool_of(write_lines("1.jsonl", rows))
    assert (made.problems, made.samples) == (3, 4)
    prompts = [problem.prompt for problem in pool.problems]
    assert [{"role": "user", "content": "2+2?"}] in prompts
    assert like_chat in prompts
    assert "2+2?" in prompts


def test_a_gold_that_is_not_text_is_kept_as_json(write_lines: Maker, pool_of: Maker) -> None:
    _, pool = pool_of(write_lines("1.jsonl", [{**ROWS[0], "gts": {"target": 24, "numbers": [4, 6]}}]))
    assert pool.problems[0].gold == '{"numbers": [4, 6], "target": 24}'
