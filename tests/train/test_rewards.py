import asyncio

import pytest

from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.problem import Verdict
from offleash.eval.tasks import load_task
from offleash.train.rewards import FormatReward, VerifierReward, reward_functions


def test_right_is_1_wrong_is_0_and_cut_off_is_never_right():
    task = load_task("countdown", split="train", n=3)
    reward = VerifierReward(task, end_token_ids=[7])
    problem = task.problems[0]
    right = task.correct_answers(problem)[0]
    ids = [problem.id] * 4
    scores = reward(
        prompts=[problem.prompt] * 4,
        completions=[right, "1+1", right, [{"role": "assistant", "content": right}]],
        completion_ids=[[5, 7], [5, 7], [5, 5], [7]],
        problem_id=ids,
    )
    assert scores == [1.0, 0.0, 0.0, 1.0]


def test_a_verifier_that_keeps_failing_ends_the_run():
    class Hanging:
        name, version = "hanging", "1"
        problems = load_task("countdown", split="train", n=256).problems

        def verify(self, problems, completions, truncated=None):
            return [Verdict(None, False, "error")] * 4 + [Verdict("1", False, "ok")] * (len(completions) - 4)

    reward = VerifierReward(Hanging(), end_token_ids=[7])
    batch = {"prompts": ["p"] * 256, "completions": ["x"] * 256, "completion_ids": [[7]] * 256}
    with pytest.raises(VerifyError, match="failed on 4 of 256 completions"):
        reward(**batch, problem_id=[problem.id for problem in Hanging.problems])


def test_a_verifier_failure_is_none_and_counted():
    class Broken:
        name, version = "broken", "1"
        problems = load_task("countdown", split="train", n=1).problems

        def verify(self, problems, completions, truncated=None):
            return [Verdict(None, False, "timeout"), Verdict("3", False, "ok"), Verdict(None, False, "error")]

    said = {}
    reward = VerifierReward(Broken(), end_token_ids=[7])
    scores = reward(
        prompts=["p"] * 3,
        completions=["a", "b", "c"],
        completion_ids=[[7]] * 3,
        problem_id=[Broken.problems[0].id] * 3,
        log_metric=said.__setitem__,
    )
    assert scores == [0.0, 0.0, None]
    assert said == {"verify/failed": 1 / 3, "verify/timed_out": 1 / 3}


class Judged:
    """A verifier that has given these verdicts."""

    def __init__(self, *statuses):
        self.latest = [Verdict("1" if status == "ok" else None, False, status) for status in statuses]


def test_the_format_reward_is_1_where_there_was_an_answer_to_judge():
    reward = FormatReward(Judged("ok", "no_answer", "truncated", "timeout", "error"))
    assert reward(completions=["x"] * 5, problem_id=["p"] * 5) == [1.0, 0.0, 0.0, 0.0, None]


def short(completions, **columns):
    return [float(len(text)) for text in completions]


async def later(completions, **columns):
    return [2.0 for _ in completions]


def few(completions, **columns):
    return [1.0]


def test_where_the_verifier_failed_no_other_reward_applies():
    verifier = Judged("ok", "error", "ok")
    verifier_, format_, own, awaited = reward_functions(
        ["verifier", "format", f"{__name__}:short", f"{__name__}:later"], verifier
    )
    assert verifier_ is verifier
    given = {"prompts": ["p"] * 3, "completions": ["a", "bb", "ccc"]}
    assert format_(**given) == [1.0, None, 1.0]
    assert own(**given) == [1.0, None, 3.0]
    assert asyncio.run(awaited(**given)) == [2.0, None, 2.0]
    assert (own.__name__, awaited.__name__) == ("short", "later")


def test_a_function_that_returns_too_few_rewards_is_named():
    _, own = reward_functions(["verifier", f"{__name__}:few"], Judged("ok", "ok"))
    with pytest.raises(ConfigError, match="few gave 1 rewards for 2 completions"):
        own(completions=["a", "b"])
