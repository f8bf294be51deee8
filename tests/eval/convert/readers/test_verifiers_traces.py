"""Traces of verifiers and prime-rl: the policy's are samples, their rewards verdicts, the step that of prime-rl."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.convert.importer import import_samples
from offleash.eval.convert.readers.record import Reading
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool

Maker = Callable[..., Any]


def node(role: str, content: Any, parent: int | None, logprobs: list[float] | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"message": {"role": role, "content": content}, "sampled": logprobs is not None}
    if parent is not None:
        made["parent"] = parent
    scaffold = [1, 2]
    return made | {
        "token_ids": scaffold + [5] * len(logprobs or []),
        "mask": [False, False] + [True] * len(logprobs or []),
        "logprobs": logprobs or [],
        "timestamp": 1.7e9,
    }


def trace(reply: str, rewards: dict[str, Any], number: int, agent: str = "solver", **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "id": f"trace-{number}",
        "task": {"type": "GSM8KTask", "data": {"idx": 0}, "key": "unused"},
        "agent": {"config": {}, "name": agent, "trainable": agent != "judge"},
        "nodes": [
            node("system", "Think.", None),
            node("user", "2+2?", 0),
            node("assistant", reply, 1, [-0.5, -0.25]),
        ],
        "calls": [{"node": 2, "finish_reason": "stop", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}],
        "rewards": rewards,
        "metrics": {"turns": 1.0},
        "info": {"extracted": reply[-1:]},
        "is_completed": True,
        "ok": True,
        "errors": [],
        **more,
    }


def episode(
    number: int, key: str, *traces: dict[str, Any], step: int | None = None, kind: str = "eval"
) -> dict[str, Any]:
    run = {"type": "train", "id": "r", "work": {"type": kind, "step": step, "policy": {"start": step, "end": step}}}
    return {
        "id": f"episode-{number}",
        "env": {"id": "gsm8k"},
        "task": {
            "type": "GSM8KTask",
            "data": {"prompt": "2+2?", "system_prompt": "Think.", "answer": "4", "key": key},
            "key": key,
        },
        **({} if step is None else {"run": run}),
        "ok": True,
        "errors": [],
        "traces": list(traces),
    }


RIGHT, WRONG = {"correct": {"score": 1.0, "weight": 1.0}}, {"correct": {"score": 0.0, "weight": 1.0}}


def test_hits_tokens_and_log_probabilities_are_those_counted_by_hand(
    write_lines: Maker, pool_of: Maker, pass_at_1: Maker
) -> None:
    rows = [
        episode(0, "a", trace("4", RIGHT, 0)),
        episode(1, "b", trace("5", WRONG, 1)),
        episode(2, "a", trace("so", WRONG, 2, stop_condition="max_output_tokens")),
        episode(3, "a", trace("4", RIGHT, 3)),
        episode(4, "a", trace("", {"correct": None}, 4, ok=False, errors=[{"type": "TimeoutError", "message": "x"}])),
        episode(5, "b"),
    ]
    made, pool = pool_of(write_lines("traces.jsonl", rows))
    assert (made.format, made.problems, made.samples, made.correct) == ("verifiers traces", 2, 6, 2)
    assert pass_at_1(pool) == {"a": 2 / 4, "b": 0.0}
    assert made.step is None
    samples = pool.read(["problem_id", "status", "tokens", "logprob", "completion"]).to_pylist()
    assert [one["status"] for one in samples if one["problem_id"] == "a"] == ["ok", "truncated", "ok", "error"]
    assert [one["status"] for one in samples if one["problem_id"] == "b"] == ["ok", "error"]
    assert (samples[0]["tokens"], samples[0]["logprob"], samples[0]["completion"]) == (2, -0.75, "4")
    assert pool.problems[0].prompt == [{"role": "system", "content": "Think."}, {"role": "user", "content": "2+2?"}]
    assert pool.problems[0].gold == "4"


def test_prime_rl_says_the_step_in_the_line_or_in_the_path(write_lines: Maker, pool_of: Maker) -> None:
    told = write_lines("told.jsonl", [episode(0, "a", trace("4", RIGHT, 0), step=30)])
    assert pool_of(told, "told", option="prime-rl")[0].step == 30
    path = write_lines("rollouts/step_50/eval/all/traces.jsonl", [episode(0, "a", trace("4", RIGHT, 0))])
    assert pool_of(path, "found")[0].step == 50


def test_rollouts_for_training_and_evaluation_and_repeated_ones_are_not_added_up(
    write_lines: Maker, pool_of: Maker, tmp_path: Path
) -> None:
    one = episode(0, "a", trace("4", RIGHT, 0), step=30)
    other = episode(1, "a", trace("4", RIGHT, 1), step=30, kind="train")
    with pytest.raises(ConfigError, match="mixes eval and train: import them apart"):
        pool_of(write_lines("traces.jsonl", [one, other]))
    paths = [write_lines(f"rollouts/step_30/eval/{name}/traces.jsonl", [one]) for name in ("all", "effective")]
    with pytest.raises(
        ConfigError, match=r"effective/traces\.jsonl: .*line 1 repeats sample 'trace-0' of line 1 of .*all"
    ):
        pool_of(paths)
    assert not (tmp_path / "pool").exists()


def test_judges_are_no_samples_and_of_several_agents_one_is_chosen(write_lines: Maker, pool_of: Maker) -> None:
    judged = episode(0, "a", trace("4", RIGHT, 0), trace("yes", {}, 1, "judge"))
    assert pool_of(write_lines("judged.jsonl", [judged]), "judged")[0].samples == 1
    two = write_lines("two.jsonl", [episode(0, "a", trace("4", RIGHT, 0), trace("4?", WRONG, 1, "proposer"))])
    with pytest.raises(ConfigError, match=r"2 filters \(proposer, solver\): choose one with --filter"):
        pool_of(two)
    assert pool_of(two, reading=Reading(filter="solver"))[0].correct == 1


def test_of_several_rewards_one_or_their_sum_is_named(write_lines: Maker, pool_of: Maker) -> None:
    rewards = {"correct": {"score": 1.0, "weight": 1.0}, "format": {"score": 0.5, "weight": 0.2}}
    path = write_lines("traces.jsonl", [episode(0, "a", trace("4", rewards, 0))])
    with pytest.raises(ConfigError, match=r"4 scores \(turns, reward, correct, format\): .*--correct"):
        pool_of(path)
    assert pool_of(path, "one", reading=Reading(correct="correct"))[0].correct == 1
    made, pool = pool_of(path, "sum", reading=Reading(correct="reward", threshold=1.1, answer="extracted"))
    assert (made.correct, made.judged_by) == (1, "reward")
    assert pool.read(["answer"]).column("answer").to_pylist() == ["4"]
    with pytest.raises(ConfigError, match=r"reward is 1\.1, neither 0 nor 1"):
        pool_of(path, "other", reading=Reading(correct="reward"))


def test_the_conversation_is_the_path_to_the_last_leaf(write_lines: Maker, pool_of: Maker) -> None:
    nodes = [
        node("user", "2+2?", None),
        node("assistant", "dropped", 0, [-1.0]),
        node("assistant", "let me see. ", 0, [-1.0]),
        node("tool", "4", 2),
        node("assistant", "4", 3, [-2.0]),
    ]
    _, pool = pool_of(write_lines("traces.jsonl", [episode(0, "a", trace("", RIGHT, 0, nodes=nodes))]))
    (sample,) = pool.read(["completion", "tokens", "logprob"]).to_pylist()
    assert sample == {"completion": "let me see. 4", "tokens": 2, "logprob": -3.0}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"nodes": [node("user", "q", 3)]}, "line 1 node 0 has the parent 3"),
        ({"nodes": "none"}, "line 1 nodes must be a list, got 'none'"),
        ({"rewards": {"correct": {"score": float("nan")}}}, "line 1 correct is missing"),
        ({"rewards": {"correct": None}}, "line 1 correct is missing"),
        ({"rewards": {}}, "the file has 0 scores"),
        ({"rewards": [1]}, "line 1 rewards must be an object"),
        ({"nodes": [node("assistant", "4", None, [0.5])]}, "line 1 logprobs must be a log-probability"),
    ],
)
def test_damaged_traces_are_named(damage: dict[str, Any], message: str, write_lines: Maker, tmp_path: Path) -> None:
    path = write_lines("traces.jsonl", [json.dumps(episode(0, "a", {**trace("4", RIGHT, 0), **damage}))])
    with pytest.raises(ConfigError, match=message):
        import_samples(path, tmp_path / "pool")
    assert not (tmp_path / "pool").exists()


def result_row(example: int, reply: str, reward: float, **more: Any) -> dict[str, Any]:
    return {
        "example_id": example,
        "prompt": [{"role": "user", "content": "What is 2 + 2?"}],
        "completion": [{"role": "assistant", "content": reply}],
        "answer": "4",
        "reward": reward,
        "error": None,
        "is_completed": True,
        "is_truncated": False,
        "metrics": {"correct": reward},
        "token_usage": {"input_tokens": 5.0, "output_tokens": 7.0},
        **more,
    }


def test_results_of_evaluations(tmp_path: Path, write_lines: Maker) -> None:
    rows = [
        result_row(3, "\\boxed{4}", 1.0),
        result_row(3, "\\boxed{5}", 0.0, is_truncated=True),
        result_row(3, "", 0.0, error={"error": "TimeoutError"}),
    ]
    made = import_samples(write_lines("results.jsonl", rows), tmp_path / "pool")
    assert (made.format, made.problems, made.samples, made.correct) == ("verifiers", 1, 3, 1)
    pool = Pool.open(tmp_path / "pool")
    samples = pool.read(["status", "tokens"]).to_pylist()
    assert [row["status"] for row in samples] == ["ok", "truncated", "error"]
    assert samples[0]["tokens"] == 7
    assert (pool.problems[0].prompt, pool.problems[0].gold) == ([{"role": "user", "content": "What is 2 + 2?"}], "4")
