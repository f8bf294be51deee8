"""TRL's logged completions, as a real trainer writes them: grouped by prompt, judged by a named reward."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from offleash.eval.convert.readers.record import Reading
from offleash.eval.errors import ConfigError

Maker = Callable[..., Any]


def write(path: Path, **columns: Any) -> Path:
    """As TRL does: a data frame without an index of its own."""
    rows = len(columns["prompt"])
    table = {"step": [7] * rows, "completion": ["x"] * rows, **columns, "advantage": [0.0] * rows}
    pd.DataFrame(table).to_parquet(path)
    return path


@pytest.mark.long
def test_a_file_of_a_real_trainer_has_the_reward_that_the_trainer_had(
    make_trainer: Maker, pool_of: Maker, tmp_path: Path
) -> None:
    trainer = make_trainer(max_steps=1, log_completions=True, num_completions_to_print=0)
    trainer.train()
    path = tmp_path / "run" / "completions" / "completions_00001.parquet"
    table = pd.read_parquet(path)
    (reward,) = trainer.reward_func_names
    made, pool = pool_of(path)
    assert (made.format, made.samples, made.judged_by, made.step) == ("trl", 32, reward, 1)
    assert made.problems == table["prompt"].nunique()
    assert made.correct == int(table[reward].sum())
    hits = pool.hits()
    by_prompt = table.groupby("prompt")[reward].agg(["sum", "count"])
    for problem, correct, n in zip(pool.problems, hits.correct_p, hits.n_p, strict=True):
        assert (correct, n) == tuple(by_prompt.loc[problem.prompt])


def test_chat_prompts_are_grouped_whatever_fields_the_table_adds(tmp_path: Path, pool_of: Maker) -> None:
    chats = [[{"role": "system", "content": "s"}, {"role": "user", "content": q}] for q in ("2+2?", "9-5?", "2+2?")]
    said = [[{"role": "assistant", "content": text, "tool_calls": None}] for text in ("4", "4", "<i>5</i>")]
    made, pool = pool_of(write(tmp_path / "c.parquet", prompt=chats, completion=said, right=[1.0, 1.0, 0.0]))
    assert (made.problems, made.samples, made.correct) == (2, 3, 2)
    assert chats[0] in [problem.prompt for problem in pool.problems]
    assert sorted(pool.read(["completion"]).column("completion").to_pylist()) == ["4", "4", "<i>5</i>"]


def test_of_several_rewards_one_must_be_named(tmp_path: Path, pool_of: Maker) -> None:
    path = write(tmp_path / "c.parquet", prompt=["a", "a"], accuracy=[1.0, 0.0], length=[0.3, 0.9], found=["4", None])
    with pytest.raises(
        ConfigError, match=r"c\.parquet \(trl\): the file has 2 scores \(accuracy, length\): .*--correct"
    ):
        pool_of(path)
    assert pool_of(path, reading=Reading(correct="accuracy"))[0].correct == 1
    made, pool = pool_of(path, "by-length", reading=Reading(correct="length", threshold=0.3, answer="found"))
    assert (made.correct, made.judged_by) == (2, "length")
    assert pool.read(["answer"]).column("answer").to_pylist() == ["4", None]
    with pytest.raises(ConfigError, match="has no score 'acc'; it has accuracy, length"):
        pool_of(path, "other", reading=Reading(correct="acc"))


def test_a_reward_that_was_not_applicable_is_no_verdict(tmp_path: Path, pool_of: Maker) -> None:
    path = write(tmp_path / "c.parquet", prompt=["a", "a"], accuracy=[1.0, float("nan")])
    with pytest.raises(ConfigError, match="line 2 accuracy is missing"):
        pool_of(path)


def test_empty_prompts_and_completions_are_named(tmp_path: Path, pool_of: Maker) -> None:
    path = write(tmp_path / "c.parquet", prompt=[None, "a"], completion=["x", None], accuracy=[1.0, 1.0])
    with pytest.raises(ConfigError, match=r"line 1 prompt must be .*line 2 completion is missing"):
        pool_of(path)
