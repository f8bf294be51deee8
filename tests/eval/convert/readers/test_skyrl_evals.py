"""SkyRL's evaluation dumps: the step is in the path, a problem belongs to its data source, a turn is not a sample."""

from collections.abc import Callable
from typing import Any

import pytest

from offleash.eval.errors import ConfigError

Maker = Callable[..., Any]
FILE = "export/dumped_evals/global_step_40_evals/gsm8k.jsonl"


def row(question: str, response: str, score: Any, source: str = "openai/gsm8k", stop: str | None = "stop") -> Any:
    return {
        "input_prompt": f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
        "output_response": f"{response}<|im_end|>",
        "score": score,
        "stop_reason": stop,
        "env_class": "gsm8k",
        "env_extras": {"data_source": source, "reward_spec": {"method": "rule", "ground_truth": "4"}},
        "data_source": source,
    }


ROWS = [row("2+2?", "4", 1.0), row("2+2?", "so lo", 0.0, stop="length"), row("9-5?", "4", 1.0), row("9-5?", "4", 1.0)]


def test_hits_statuses_step_and_gold_are_those_counted_by_hand(
    write_lines: Maker, pool_of: Maker, pass_at_1: Maker
) -> None:
    made, pool = pool_of(write_lines(FILE, ROWS))
    assert (made.format, made.problems, made.samples, made.correct, made.step) == ("skyrl", 2, 4, 3, 40)
    assert sorted(pass_at_1(pool).values()) == [0.5, 1.0]
    assert sorted(pool.read(["status"]).column("status").to_pylist()) == ["ok", "ok", "ok", "truncated"]
    assert {problem.gold for problem in pool.problems} == {"4"}
    assert all(problem.id.startswith("openai/gsm8k/") for problem in pool.problems)


def test_several_sources_of_one_step_add_up_without_mixing_their_problems(write_lines: Maker, pool_of: Maker) -> None:
    other = [row("2+2?", "5", 0.0, "math"), row("2+2?", "4", 1.0, "math")]
    paths = [write_lines(FILE, ROWS), write_lines(FILE.replace("gsm8k", "math"), other)]
    made, _ = pool_of(paths)
    assert (made.problems, made.samples, made.correct, made.most) == (3, 6, 4, 2)


def test_a_reward_per_token_counts_where_its_sum_is_that_of_the_last_token(write_lines: Maker, pool_of: Maker) -> None:
    made, _ = pool_of(write_lines(FILE, [row("2+2?", "4", [0.0, 0.0, 1.0]), row("2+2?", "5", [0, 0])]))
    assert made.correct == 1
    with pytest.raises(ConfigError, match=r"line 1 score is a reward per token .*got \[0\.5, 0\.5\]"):
        pool_of(write_lines("spread.jsonl", [row("2+2?", "4", [0.5, 0.5])]), "other")


def test_a_dump_with_a_line_per_turn_is_refused(write_lines: Maker, pool_of: Maker) -> None:
    first = row("2+2?", "let me look", 0.0)
    second = {**first, "input_prompt": f"{first['input_prompt']}{first['output_response']}\nuser\n4\n", "score": 1.0}
    with pytest.raises(ConfigError, match="line 2 continues the conversation of the line before"):
        pool_of(write_lines(FILE, [first, second]))


def test_the_aggregated_file_beside_them_is_no_sample_file(write_lines: Maker, pool_of: Maker) -> None:
    with pytest.raises(ConfigError, match=r"aggregated_results\.jsonl, line 1, has the columns eval/all/avg_score"):
        pool_of(write_lines("aggregated_results.jsonl", [{"eval/all/avg_score": 0.5}]))
