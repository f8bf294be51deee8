"""When the verifier cannot be trusted: bad gold answers, or too many failures of its own."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pytest

from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.problem import Problem, Status, Verdict
from offleash.eval.tasks.math_tasks import MathAnswers
from offleash.eval.verify.health import Failures, bad_golds


def judged(failures: Failures, *runs: tuple[Status, int], first: int = 0, message: str = "") -> None:
    """One batch, a verdict of each of many problems."""
    verdicts = [Verdict(None, False, status, message=message) for status, count in runs for _ in range(count)]
    failures.add(range(first, first + len(verdicts)), verdicts)


def test_failures_over_the_limit_stop_a_run_and_say_how_many() -> None:
    failures = Failures()
    judged(failures, ("ok", 990), ("error", 10))
    failures.check()
    judged(failures, ("error", 11), first=1000, message="ValueError: no such number")
    with pytest.raises(VerifyError, match=r"21 of 1011 completions .*ValueError: no such number.* 21 of 1011 problems"):
        failures.check()


def test_one_failure_among_few_does_not() -> None:
    failures = Failures()
    judged(failures, ("ok", 2), ("error", 1))
    failures.check()
    judged(failures, ("ok", 195), ("error", 2), first=3)
    failures.check()
    judged(failures, ("ok", 1), ("error", 1), first=200)
    with pytest.raises(VerifyError):
        failures.check()


def test_a_verifier_that_is_suddenly_gone_stops_a_run_however_well_it_went_before() -> None:
    failures = Failures()
    judged(failures, ("ok", 100_000))
    judged(failures, ("ok", 8), ("error", 9))
    failures.check()
    judged(failures, ("ok", 7), ("error", 9), first=100)
    with pytest.raises(VerifyError, match="100033 completions"):
        failures.check()


def test_what_the_model_fails_at_is_counted_and_never_stops_a_run() -> None:
    failures = Failures()
    judged(failures, ("no_answer", 500), ("truncated", 250), ("timeout", 250))
    failures.check()
    assert failures.rates() == {"ok": 0.0, "no_answer": 0.5, "truncated": 0.25, "timeout": 0.25, "error": 0.0}


# One problem does not decide; a verifier that is down does

K = 256
Plan = Literal["fixed", "stopping", "stream"]


def errors(failures: Failures, plan: Plan, rate_p: np.ndarray, error_at: Callable[[int, int], float]) -> int | None:
    """After how many verdicts a pool ends, None if it is filled. `error_at(problem, verdicts so far)` is the chance of
    a failure; a plan stops at 5 successes, in rounds that double ("stopping") or by single draws of all that are left.
    """
    rng = np.random.default_rng(0)
    draws_p, hits_p = np.zeros(len(rate_p), int), np.zeros(len(rate_p), int)
    while (open_p := np.flatnonzero((draws_p < K) & ((plan == "fixed") | (hits_p < 5)))).size:
        size = max(1, int(draws_p[open_p[0]])) if plan == "stopping" else 1
        batch = [int(p) for p in open_p for _ in range(min(size, K - int(draws_p[p])))]
        for start in range(0, len(batch), 16 if plan == "stream" else 512):
            problems = batch[start : start + (16 if plan == "stream" else 512)]
            failed = [rng.random() < error_at(p, failures.total) for p in problems]
            failures.add(problems, [Verdict(None, False, "error" if one else "ok") for one in failed])
            np.add.at(draws_p, problems, 1)
            np.add.at(hits_p, problems, (rng.random(len(problems)) < rate_p[problems]) & ~np.array(failed))
            try:
                failures.check()
            except VerifyError:
                return failures.total
    return None


# 0 is never solved, so that it has nearly a third of the draws of a plan that stops, and all of its last ones.
RATES = np.concatenate([[0.0], np.random.default_rng(1).uniform(0.2, 1, 63)])
PLANS: tuple[Plan, ...] = ("fixed", "stopping", "stream")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("error", [0.03, 0.2, 0.5, 0.9, 1.0])
def test_one_problem_on_which_the_verifier_fails_does_not_end_a_run(plan: Plan, error: float) -> None:
    assert errors(Failures(), plan, RATES, lambda problem, _: error * (problem == 0)) is None


@pytest.mark.parametrize("plan", PLANS)
def test_failures_on_all_problems_end_a_run_soon(plan: Plan) -> None:
    ended = errors(Failures(), plan, RATES, lambda problem, _: 0.1)
    assert ended is not None
    assert ended < 1024
    assert errors(Failures(), plan, RATES, lambda problem, _: 0.002) is None


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("since", [0, 100, 300, 600])
def test_a_verifier_that_goes_down_ends_a_run_at_once(plan: Plan, since: int) -> None:
    ended = errors(Failures(), plan, RATES, lambda problem, total: 0.03 * (problem == 0) + (total >= since))
    assert ended is not None
    assert ended <= since + {"fixed": 128, "stopping": 512, "stream": 64}[plan]


def test_a_verifier_that_goes_down_where_a_stream_has_one_problem_left_ends_it() -> None:
    failures = Failures()
    for status in ["ok"] * 16 + ["error"] * 15:
        failures.add([0], [Verdict(None, False, status)])  # type: ignore[arg-type]
        failures.check()
    failures.add([0], [Verdict(None, False, "error")])
    with pytest.raises(VerifyError):
        failures.check()


def test_a_problem_that_ended_early_does_not_hide_that_the_verifier_went_down() -> None:
    failures = Failures()
    judged(failures, ("ok", 8))
    failures.add([0] * 16, [Verdict(None, False, "ok")] * 16)
    failures.add([0, 1], [Verdict(None, False, "ok")] * 2)  # the last of 1, which is solved
    failures.add([0] * 32, [Verdict(None, False, "error")] * 32)
    with pytest.raises(VerifyError):
        failures.check()


def test_batches_of_one_problem_each_add_up() -> None:
    for rates, is_down in (
        ((1, 1, 1), True),
        ((1, 1, 0), False),
        ((0, 1, 0, 0, 1, 0), False),
        ((0, 0, 0, 1, 1, 1), True),
    ):
        failures = Failures(minimum=10_000)
        judged(failures, ("ok", 100), first=100)  # of a training run: other problems, long ago
        try:
            for problem, rate in enumerate(rates):
                failures.add([problem] * 8, [Verdict(None, False, "error" if rate else "ok")] * 8)
                failures.check()
        except VerifyError:
            assert is_down
        else:
            assert not is_down


def test_a_verifier_that_has_never_worked_ends_a_run_of_one_problem() -> None:
    failures = Failures()
    failures.add([0] * 8, [Verdict(None, False, "error")] * 8)
    with pytest.raises(VerifyError):
        failures.check()


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
