"""Gold answers are checked before anything is sampled."""

from collections.abc import Sequence

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks.math_tasks import MathAnswers
from offleash.eval.verify.golds import check_golds, require_golds


def rows(*answers: str) -> list[dict[str, str]]:
    return [{"id": f"p{i}", "problem": "?", "answer": answer} for i, answer in enumerate(answers)]


def test_good_golds_pass() -> None:
    task = MathAnswers("good", rows("5", "\\frac{1}{2}", "\\text{east}", "(1,2)", "x \\in [-2,7]", "50\\%"))
    assert check_golds(task) == []
    require_golds(task)


def test_bad_golds_are_listed_and_refused() -> None:
    task = MathAnswers("bad", rows("5", "\\frac{1}{", "", "7"))
    found = check_golds(task)
    assert [problem_id for problem_id, _ in found] == ["p1", "p2"]
    with pytest.raises(ConfigError, match=r"2 of 4 gold answers of task 'bad'.*p1.*p2.*empty"):
        require_golds(task)
    task.verifier.close()


class Rejecting:
    """A task that never accepts its own gold."""

    name, version = "rejecting", "1"
    problems = tuple(Problem(str(i), "?", "gold") for i in range(15))

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        return [Verdict("x", False, "ok")] * len(problems)

    def correct_answers(self, problem: Problem) -> None:
        return None

    def gold_completion(self, problem: Problem) -> str | None:
        return None if problem.id == "3" else problem.gold


class Silent(Rejecting):
    gold_completion = None  # type: ignore[assignment]


def test_a_gold_must_be_judged_correct_and_a_problem_without_one_is_not_held_against_the_task() -> None:
    assert len(check_golds(Rejecting())) == 14
    with pytest.raises(ConfigError, match=r"14 of 15.*and 4 more"):
        require_golds(Rejecting())


def test_a_task_that_cannot_be_checked_says_so() -> None:
    with pytest.raises(TypeError, match="neither gold_faults nor gold_completion"):
        check_golds(Silent())
