"""An exception in a verdict is that sample's status, and nothing else happens."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks.answer_task import Answered, AnswerTask, Scored, SlowTask
from offleash.eval.verify.extract import Found
from offleash.eval.verify.sandbox.workers import Outcome
from offleash.eval.verify.verdicts import verdicts_of

PROBLEM = Problem("p", "?", "5")


class Own:
    """A verifier as a user writes it: fine until a completion is empty."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        self.batches.append(len(completions))
        cut = truncated or [False] * len(completions)
        words = [text.split()[-1] for text in completions]
        return [
            Verdict(word, word == p.gold, "truncated" if c else "ok")
            for p, word, c in zip(problems, words, cut, strict=True)
        ]


def test_one_bad_sample_costs_one_verdict() -> None:
    own = Own()
    completions = ["it is 5"] * 64
    completions[11] = completions[40] = ""
    cut = [index == 63 for index in range(64)]
    found = verdicts_of(own.verify, [PROBLEM] * 64, completions, cut)
    assert [index for index, one in enumerate(found) if one.failed] == [11, 40]
    assert found[11] == Verdict(None, False, "error", message="IndexError: list index out of range")
    assert sum(one.correct for one in found) == 62
    assert found[63].status == "truncated"
    assert len(own.batches) < 30  # halves, not one by one


def test_a_batch_without_trouble_is_verified_at_once() -> None:
    own = Own()
    assert all(one.correct for one in verdicts_of(own.verify, [PROBLEM] * 9, ["5"] * 9))
    assert own.batches == [9]
    assert verdicts_of(own.verify, [], []) == []
    assert own.batches == [9]


def test_errors_that_are_no_samples_fault_pass() -> None:
    def unset(problems: object, completions: object, truncated: object = None) -> list[Verdict]:
        raise ConfigError("give the task judge_url")

    def interrupted(problems: object, completions: object, truncated: object = None) -> list[Verdict]:
        raise KeyboardInterrupt

    with pytest.raises(ConfigError, match="judge_url"):
        verdicts_of(unset, [PROBLEM], ["5"])
    with pytest.raises(KeyboardInterrupt):
        verdicts_of(interrupted, [PROBLEM], ["5"])
    with pytest.raises(VerifyError, match="returned 0 verdicts for 1 completions"):
        verdicts_of(lambda problems, completions, truncated=None: [], [PROBLEM], ["5"])
    with pytest.raises(ValueError, match="differ in length"):
        verdicts_of(Own().verify, [PROBLEM], ["5", "5"])


def test_every_batch_of_the_package_is_verified_through_it() -> None:
    """A task of a user's own may raise: nobody calls its `verify` directly."""
    root = Path(__file__).parents[3]
    direct = [
        f"{path.relative_to(root)}:{node.lineno}"
        for room in ("eval", "callbacks", "train")
        for path in (root / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "verify"
    ]
    assert direct == []


class Fragile(AnswerTask):
    """Raises where it finds the answer, or where it judges it."""

    version = "1"

    def find(self, problem: Problem, completion: str) -> Found:
        if completion == "unfindable":
            raise RecursionError
        return Found(completion, "whole")

    def judge_answers(self, answered: Answered) -> list[Verdict]:
        return [Verdict(answer, int(answer) == 5, "ok") for _, answer in answered]


def test_every_task_of_the_frame_is_guarded() -> None:
    task = Fragile("fragile", [PROBLEM])
    found = task.verify([PROBLEM] * 4, ["5", "unfindable", "five", "6"])
    assert [(one.status, one.correct) for one in found] == [
        ("ok", True),
        ("error", False),
        ("error", False),
        ("ok", False),
    ]
    assert found[1].message == "RecursionError: RecursionError"


class Slow(SlowTask):
    """Scores by `outcomes`, by answer; the gold is "5"."""

    version = "1"
    outcomes: dict[str, Outcome] = {}  # noqa: RUF012
    asked: list[str]

    def find(self, problem: Problem, completion: str) -> Found:
        return Found(completion, "whole")

    def score(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Scored]:
        self.asked = [*getattr(self, "asked", []), *(answer for _, answer in pairs)]
        return {pair: Scored.of(self.outcomes.get(pair[1], Outcome("ok")), pair[1] == "5") for pair in pairs}

    def answer_class(self, problem: Problem, answer: str, correct: bool) -> str:
        return answer

    def gold_completion(self, problem: Problem) -> str | None:
        return problem.gold or None


@pytest.mark.parametrize(
    ("outcome", "gold", "status"),
    [
        (Outcome("timeout", exhausted=True), Outcome("ok"), "timeout"),
        (Outcome("error", message="MemoryError", exhausted=True), Outcome("ok"), "timeout"),
        (Outcome("timeout", exhausted=True), Outcome("timeout", exhausted=True), "error"),
        (Outcome("error", message="the scorer raised"), Outcome("ok"), "error"),
    ],
)
def test_an_answer_that_uses_up_the_verifier_is_wrong_only_if_its_gold_does_not(
    outcome: Outcome, gold: Outcome, status: str
) -> None:
    for stated, control in (("5", "5"), ("", "")):  # a problem that states no gold is tried with an empty answer
        problem = Problem("p", "?", stated)
        task = Slow("slow", [problem])
        task.outcomes = {"bad": outcome, control: gold}
        found = task.verify([problem] * 2, ["bad", "6"])
        assert [(one.status, one.correct) for one in found] == [(status, False), ("ok", False)]
        assert found[0].message == outcome.message
        task.verify([problem], ["bad"])
        assert task.asked.count("bad") == (1 if status == "timeout" else 2)  # a failure is tried again
