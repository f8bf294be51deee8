"""When the verifier has failed too often."""

import math

import pytest

from offleash.eval.errors import VerifyError
from offleash.eval.problem import Status, Verdict
from offleash.eval.verify.health import Failures


def verdicts(status: Status, count: int) -> list[Verdict]:
    return [Verdict(None, False, status)] * count


def test_failures_over_the_limit_stop_a_run_and_say_how_many() -> None:
    failures = Failures()
    failures.add(verdicts("ok", 990) + verdicts("timeout", 5) + verdicts("error", 5))
    failures.check()
    failures.add(verdicts("timeout", 11))
    with pytest.raises(VerifyError, match=r"21 of 1011 completions \(16 timeouts, 5 errors\)"):
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
    with pytest.raises(VerifyError, match="start the judge again"):
        failures.check()


def test_what_the_model_fails_at_is_counted_and_never_stops_a_run() -> None:
    failures = Failures()
    failures.add(verdicts("no_answer", 500) + verdicts("truncated", 500))
    failures.check()
    assert failures.rates() == {"ok": 0.0, "no_answer": 0.5, "truncated": 0.5, "timeout": 0.0, "error": 0.0}


def test_no_verdicts_have_no_rates() -> None:
    assert all(math.isnan(rate) for rate in Failures().rates().values())
