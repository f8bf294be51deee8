"""When the verifier cannot be trusted: bad gold answers, or too many failures of its own."""

import math
from collections.abc import Sequence

import pytest

from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.problem import Problem, Status, Verdict
from offleash.eval.tasks.math_tasks import MathAnswers
from offleash.eval.verify.health import Failures, bad_golds


def verdicts(status: Status, count: int) -> list[Verdict]:
    return [Verdict(None, False, status)] * count


def test_failures_over_the_limit_stop_a_run_and_say_how_many() -> None:
    failures = Failures()
    failures.add(verdicts("ok", 990) + verdicts("error", 10))
    failures.check()
    failures.add([Verdict(None, False, "error", message="ValueError: no such number")] * 11)
    with pytest.raises(VerifyError, match=r"21 of 1011 completions \(the last: ValueError: no such number\)"):
        failures.check()


def test_one_failure_among_few_does_not() -> None:
    failures = Failures()
    failures.add(verdicts("ok", 2) + verdicts("error", 1))
    failures.check()
    failures.add(verdicts("ok", 195) + verdicts("error", 1))
    failures.check()
    failures.add(verdicts("error", 1))
    with pytest.raises(VerifyError):
        failures.check()


def test_a_verifier_that_is_suddenly_gone_stops_a_run_however_well_it_went_before() -> None:
    failures = Failures()
    failures.add(verdicts("ok", 100_000))
    failures.add(verdicts("ok", 8) + verdicts("error", 8))
    failures.check()
    failures.add(verdicts("ok", 7) + verdicts("error", 8))
    with pytest.raises(VerifyError, match="100031 completions"):
        failures.check()


def test_what_the_model_fails_at_is_counted_and_never_stops_a_run() -> None:
    failures = Failures()
    failures.add(verdicts("no_answer", 500) + verdicts("truncated", 250) + verdicts("timeout", 250))
    failures.check()
    assert failures.rates() == {"ok": 0.0, "no_answer": 0.5, "truncated": 0.25, "timeout": 0.25, "error": 0.0}


def test_no_verdicts_have_no_rates() -> None:
    assert all(math.isnan(rate) for rate in Failures().rates().values())


# Gold answers are checked before anything is sampled


def problems(*golds: str) -> list[Problem]:
    return [Problem(f"p{i}", "?", gold) for i, gold in enumerate(golds)]


def test_good_golds_pass() -> None:
    task = MathAnswers("good", problems("5", "\\frac{1}{2}", "\\text{east}", "(1,2)", "x \\in [-2,7]", "50\\%"))
    assert bad_golds(task) == []


def test_golds_are_judged_after_the_think_block_that_the_prompt_opens() -> None:
    assert bad_golds(MathAnswers("thinking", problems("5"), thinking=True)) == []


def test_bad_golds_are_listed() -> None:
    task = MathAnswers("bad", problems("5", "\\frac{1}{", "", "7"))
    found = bad_golds(task)
    assert [problem_id for problem_id, _ in found] == ["p1", "p2"]
    assert "empty" in found[1][1]
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


class Raising(Rejecting):
    """A task with a programming error."""

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        raise TypeError("'NoneType' object is not iterable")


class Silent(Rejecting):
    gold_completion = None  # type: ignore[assignment]


def test_a_gold_must_be_judged_correct_and_a_problem_without_one_is_not_held_against_the_task() -> None:
    assert len(bad_golds(Rejecting())) == 14


def test_a_programming_error_in_a_verifier_is_named_with_each_gold() -> None:
    found = bad_golds(Raising())
    assert len(found) == 14
    assert (
        found[0][1] == "gold 'gold' is not judged correct (status error, TypeError: 'NoneType' object is not iterable)"
    )


def test_a_task_that_cannot_be_checked_says_so() -> None:
    with pytest.raises(ConfigError, match="gold_completion"):
        bad_golds(Silent())
