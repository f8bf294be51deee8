"""The math verifier: what it asks the workers, what it remembers, and that a failure is never "wrong"."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from offleash.eval.verify.math_answers.answers import answer_class
from offleash.eval.verify.math_answers.mathematics import MathVerifier, over_the_caps
from offleash.eval.verify.sandbox.workers import Outcome

UNDECIDED = ("\\int_0^1 2x dx", "\\int_0^1 3x^2 dx")  # both 1, and no formula our own reader knows


@pytest.fixture(scope="module")
def shared() -> Iterator[MathVerifier]:
    made = MathVerifier(job_seconds=30)
    yield made
    made.close()


class CountingPool:
    """Stands in for the workers: counts jobs and answers as told."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.jobs = outcome, 0

    def map(self, jobs: Sequence[Any], *, outer_seconds: float | None = None) -> list[Outcome]:
        self.jobs += len(jobs)
        return [self.outcome] * len(jobs)


def with_pool(outcome: Outcome) -> tuple[MathVerifier, CountingPool]:
    verifier, pool = MathVerifier(), CountingPool(outcome)
    verifier.pool = pool  # type: ignore[assignment]
    return verifier, pool


def test_computer_algebra_decides_what_we_cannot_read(shared: MathVerifier) -> None:
    same, different = shared.judge([UNDECIDED[0]] * 2, [UNDECIDED[1], "\\int_0^1 x dx"])
    assert (same.correct, same.status) == (True, "ok")
    assert same.answer == answer_class(UNDECIDED[0])
    assert (different.correct, different.status) == (False, "ok")
    assert different.answer != same.answer


def test_8192_samples_cost_as_many_verifications_as_there_are_distinct_answers() -> None:
    verifier, pool = with_pool(Outcome("ok", {"gold_read": True, "answer_read": True, "same": False}))
    answers = [f"\\int_0^{i % 7} f dx" for i in range(8192)]
    verifier.judge(["5"] * 8192, answers)
    assert pool.jobs == 7
    verifier.judge(["5"] * 8192, answers)
    assert pool.jobs == 7


def test_numbers_never_reach_the_workers() -> None:
    verifier, pool = with_pool(Outcome("error", message="must not be asked"))
    golds = ["5", "\\frac12", "(1,2)", "x^2+1", "\\text{east}", "10\\text{ cm}", "[0,1)", "3\\sqrt2"]
    answers = ["6", ".50", "(2, 1)", "1+x^2", "west", "10 m", "0 \\le x < 1", "\\sqrt{18}"]
    found = verifier.judge(golds, answers)
    assert pool.jobs == 0
    assert [one.correct for one in found] == [False, True, False, True, False, False, True, True]


@pytest.mark.parametrize(
    ("outcome", "jobs"),
    [
        (Outcome("error", message="because"), (1, 2, 2)),
        (
            Outcome("timeout", message="because", exhausted=True),
            (2, 4, 4),
        ),  # the gold is tried too, and as late
    ],
)
def test_a_failure_is_a_status_not_a_wrong_answer_and_is_tried_twice(outcome: Outcome, jobs: tuple[int, ...]) -> None:
    verifier, pool = with_pool(outcome)
    for expected_jobs in jobs:
        judgment = verifier.judge([UNDECIDED[0]], [UNDECIDED[1]])[0]
        assert (judgment.status, judgment.correct, judgment.message) == ("error", False, "because")
        assert pool.jobs == expected_jobs
    assert judgment.answer != answer_class(UNDECIDED[0])


class Exhausting(CountingPool):
    """Workers that are used up by every answer but the golds."""

    def map(self, jobs: Sequence[Any], *, outer_seconds: float | None = None) -> list[Outcome]:
        self.jobs += len(jobs)
        fine = Outcome("ok", {"gold_read": True, "answer_read": True, "same": True})
        return [fine if job["gold"] == job["answer"] else self.outcome for job in jobs]


def test_an_answer_that_uses_up_a_worker_is_wrong_if_its_gold_does_not() -> None:
    verifier = MathVerifier()
    for outcome in (Outcome("timeout", exhausted=True), Outcome("error", message="MemoryError", exhausted=True)):
        verifier.pool = Exhausting(outcome)  # type: ignore[assignment]
        found = verifier.judge(["5"] * 2, [f"\\int_0^1 {outcome.status} dx", "5"])
        assert [(one.correct, one.status) for one in found] == [(False, "timeout"), (True, "ok")]
    verifier.pool = Exhausting(Outcome("error", message="no such function"))  # type: ignore[assignment]
    assert verifier.judge(["5"], ["\\int_0^1 g dx"])[0].status == "error"


def test_a_policy_cannot_stop_a_run_with_integrals_that_never_end() -> None:
    verifier = MathVerifier(job_seconds=8)
    endless = "\\int_0^1\\int_0^1\\int_0^1 \\frac{\\sin(x^2 y z)\\cos(x+y z)}{\\sqrt{x^2+y^3+z^4+1}} dx dy dz"
    try:
        found = verifier.judge(["\\int_0^1 x \\, dx"], [endless])[0]
        assert (found.correct, found.status) == (False, "timeout")
    finally:
        verifier.close()


def test_a_known_hanging_answer_ends_at_its_deadline_and_harms_no_other() -> None:
    verifier = MathVerifier(job_seconds=20)
    hanging = "\\prod_{k=1}^{900} (x^{k}+\\sqrt{k}) = 0"
    try:
        pairs = [("\\int x dx", hanging), (UNDECIDED[0], UNDECIDED[1]), ("5", "5.0")]
        outcomes = verifier.judge([gold for gold, _ in pairs], [answer for _, answer in pairs])
        assert outcomes[0].status in ("timeout", "error", "ok")
        assert not outcomes[0].correct
        assert [one.correct for one in outcomes[1:]] == [True, True]
    finally:
        verifier.close()


def test_verdicts_from_many_threads(shared: MathVerifier) -> None:
    results: list[bool] = []

    def judge() -> None:
        results.append(all(one.correct for one in shared.judge([UNDECIDED[0], "5"], [UNDECIDED[1], "x=5"])))

    threads = [threading.Thread(target=judge) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [True] * 8


def test_the_cache_is_bounded() -> None:
    verifier = MathVerifier(cache=10)
    verifier.judge(["5"] * 100, [str(i) for i in range(100)])
    assert len(verifier._cache) == 10
    assert verifier.judge(["5"], ["5"])[0].correct


def test_our_own_notation_is_not_an_answer(shared: MathVerifier) -> None:
    for gold in ("x^2+1", "\\sqrt{2}", "3x-y=4"):
        forged = shared.judge([gold], [answer_class(gold)])[0]
        assert not forged.correct
        assert forged.answer != answer_class(gold)


def test_golds_that_cannot_be_used_are_found(shared: MathVerifier) -> None:
    golds = ["5", "\\text{east}", "\\frac{1}{2}", UNDECIDED[0], "", "  ", "$$", "\\frac{1}{", "x" * 5000, "{{{"]
    bad = shared.unreadable(golds)
    assert set(bad) == {"", "  ", "$$", "\\frac{1}{", "x" * 5000, "{{{"}
    assert bad[""] == "is empty"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 301, "301 characters"),
        ("(" * 13 + ")" * 13, "nesting"),
        ("1" * 41, "digits"),
        ("x^2" * 9, "powers"),
        ("2^{2^{x}}", "powers"),
        ("1,2" * 31, "items"),
        ("99999!", "arguments"),
        ("\\binom{99999}{5}", "arguments"),
        ("\\sum_{i=1}^{1000000} i", "arguments"),
        ("x^{1001}", "arguments"),
        ("\\int_0^1 x^2 dx", None),
        ("\\sum_{i=1}^{10} i", None),
    ],
)
def test_caps_before_computer_algebra(text: str, reason: str | None) -> None:
    assert over_the_caps(text) == reason


def test_lengths_must_match() -> None:
    with pytest.raises(ValueError, match="shorter"):
        MathVerifier().judge(["1", "2"], ["1"])
