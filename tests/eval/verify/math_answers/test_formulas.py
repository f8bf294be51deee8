"""The formula reader: what it refuses, and how it groups."""

import time

import pytest

from offleash.eval.verify.math_answers.expressions import read
from offleash.eval.verify.math_answers.formulas import Parser, TooLarge, Unreadable, variables

UNREADABLE = ["", "1/2x", "f(x)", "1e5", "2 3", "x^y^z", "hello", "\\log x", "1/0", "x/(y-y)", "\\tan(\\pi/2)", "(1",
    "1)", "5%", "π", "ﬁ", ".", "(.)",
              "(-8)^{1/3}", "\\foo", "3_5", "()", "|", "x^", "\\frac{1}", "0^{-1}", "\\sin^{-1} x", "~"]  # fmt: skip
TOO_LARGE = ["9^{9^9}", "9^{9^{9^9}}", "2^{2^{30}}", "10000000!", "\\binom{99999}{5}",
    "(" * 50 + "1" + ")" * 50, "1+" * 400 + "1", "7" * 500,
             "\\exp(\\exp(\\exp(9)))", "\\sin(10^{50})", "(x+1)^{9999999999}", "-" * 100 + "1"]  # fmt: skip


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_is_not_understood_is_refused(text: str) -> None:
    assert read(text) == "unreadable"


@pytest.mark.parametrize("text", TOO_LARGE, ids=lambda text: text[:20])
def test_what_is_too_large_is_refused_at_once(text: str) -> None:
    started = time.process_time()
    assert read(text) == "too large"
    assert time.process_time() - started < 5


def test_signs_powers_and_functions_group_as_written() -> None:
    x, two = ("var", "x"), ("num", 2, False)
    assert Parser("-x^2").whole() == ("neg", ("pow", x, two))
    assert Parser("x^-2").whole() == ("pow", x, ("neg", two))
    assert Parser("\\sin 2x").whole() == ("fn", "sin", ("mul", two, x))
    assert Parser("\\sin(2)x").whole() == ("mul", ("fn", "sin", two), x)
    assert Parser("\\frac2x").whole() == ("div", two, x)
    assert Parser("2x/2").whole() == ("div", ("mul", two, x), two)


def test_variables_are_found_wherever_they_are() -> None:
    assert variables(Parser("\\frac{a+\\sqrt{b_1}}{\\sin \\theta}").whole()) == {"a", "b_1", "\\theta"}
    assert variables(Parser("5\\pi").whole()) == set()


def test_refusals_are_errors_of_their_own() -> None:
    with pytest.raises(Unreadable):
        Parser("2 +").whole()
    with pytest.raises(TooLarge):
        Parser("{" * 99).whole()
