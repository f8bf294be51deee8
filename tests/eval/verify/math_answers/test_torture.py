"""Answers made to hang, crash or confuse a verifier: every one gets a verdict in time, and no process is left."""

import time

import psutil
import pytest

from offleash.eval.problem import Problem
from offleash.eval.tasks.math_tasks import NUMBER_STEPS, MathAnswers
from offleash.eval.verify.math_answers.mathematics import MathVerifier

TORTURE = [
    "9^{9^9}", "9^{9^{9^{9^9}}}", "9^9^9^9", "2^{2^{30}}", "e^{e^{e^{e^{9}}}}", "((100!)!)!", "10000000!",
    "3" + "!" * 1000,
    "\\binom{1000000}{500000}", "\\sum_{i=1}^{1000000000} i", "\\prod_{i=1}^{10^9} i", "\\exp(\\exp(\\exp(20)))",
    "{" * 5000 + "1" + "}" * 5000, "(" * 2000 + "1" + ")" * 2000, "\\frac{1}{" * 300 + "2" + "}" * 300,
    "\\sqrt{" * 150 + "2" + "}" * 150,
    "7" * 200_000, "1" * 1900, "x" * 1_000_000, "1+" * 500_000 + "1", "\\text{" * 300, "x_{" * 500 + "1" + "}" * 500,
    "5\x00x", "\x00" * 1000, "🙂" * 500, "5🙂", "\ud800\udfff", "\u202e5", "5" + "\u0301" * 1500, "١٢٣", "５", "²", "Ⅷ",
    "x^" * 900, "1 " * 900, "1," * 900, "1,2;" * 400, "x=" * 900, "x<" * 900, "\\pm 1" * 300, "(1,2)\\cup" * 150,
    "-" * 1900, "1/" * 900,
    "|" * 1500, "\\begin{pmatrix}" * 100, "\\left(" * 300, "$" * 1900, "*" * 1900, "2**" * 600, "\\sin(" * 300,
    "\\log_{2}" * 200, "5%" * 500,
    "(1.0000001)^{1000000000}", "x^{100000000}", "(x+1)^{99999}", "x^{x^{x^{x}}}", "((((x^{50})^{50})^{50})^{50})",
    "i^{i^{i^i}}",
    "\\tan(10^{11})", "1e999", "1e99999999", "1 1/0", "1/0", "\\frac{0}{0}", "0^{-1}", "\\ln 0",
    "\\log(\\log(\\log(10^{10^{10}})))",
    "\\int_0^1 x^{1000} dx", "\\int e^{x^2}\\sin(x^3)\\cos(x^5) dx", "x^7-3x^5+2x^2-11=0", "x^5-3x+1<0",
    "\\{x: x^2<2\\}", "5 \\pmod{7}",
    "0.\\overline{" + "1" * 1800 + "}", "\\frac{" + "9" * 390 + "}{" + "7" * 390 + "}",
    "a" * 3 + "b" * 3, "__import__('os').system('true')",
    "+".join(f"\\frac{{{i}}}{{{i + 1}x+{i}}}" for i in range(3, 24)),
    "\\begin{pmatrix}" + "1 & 2 \\\\ " * 150 + "\\end{pmatrix}",
]  # fmt: skip
GOLDS = ["17", "\\frac{1}{2}", "x^2+1", "(1,2)", "\\{1,2\\}", "[0,1)", "3x-y=4", "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
         "\\text{east}", "\\int x dx", "9^{9^8}"]  # fmt: skip
WRAPPINGS = ["\\boxed{%s}", "%s", "<answer>%s</answer>", "The answer is %s", "<think>%s", "<think></think>%s"]


@pytest.fixture(scope="module")
def before() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_every_answer_gets_a_verdict_in_time_and_none_is_right(before: set[int]) -> None:
    verifier = MathVerifier(workers=2, job_seconds=4)
    golds = [gold for gold in GOLDS for _ in TORTURE]
    started = time.monotonic()
    found = verifier.judge(golds, TORTURE * len(GOLDS))
    assert time.monotonic() - started < 90
    assert not [(golds[i], one) for i, one in enumerate(found) if one.correct]
    failed = [one for one in found if one.status != "ok"]
    assert len(failed) <= 0.01 * len(found), failed
    verifier.close()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_a_single_answer_in_this_process_takes_no_time_to_speak_of() -> None:
    """Step 2 runs in the caller's process, without a deadline: its cost must be bounded by construction."""
    from offleash.eval.verify.math_answers.mathematics import judge_here

    for answer in TORTURE:
        started = time.process_time()
        judge_here("17", answer)
        assert time.process_time() - started < 5, answer[:50]


def test_whole_completions_of_torture(before: set[int]) -> None:
    problems = [Problem(str(i), "?", gold) for i, gold in enumerate(GOLDS[:3])]
    task = MathAnswers("torture", problems, steps=NUMBER_STEPS, verifier=MathVerifier(job_seconds=4))
    completions = [wrapping % answer for answer in TORTURE for wrapping in WRAPPINGS]
    started = time.monotonic()
    verdicts = task.verify([task.problems[0]] * len(completions), completions)
    assert time.monotonic() - started < 90
    assert not any(verdict.correct for verdict in verdicts)
    assert {verdict.status for verdict in verdicts} <= {"ok", "no_answer", "timeout", "error"}
    assert all((verdict.answer is None) == (verdict.status == "no_answer") for verdict in verdicts)
    assert all(len(verdict.answer or "") <= 2100 for verdict in verdicts)
    task.verifier.close()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
