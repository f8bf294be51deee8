"""Answers nobody wrote: whatever the text, a verdict comes without an exception, within its budget, and the same twice.

Half of the texts are put together from pieces of notation, half are golds with a few pieces changed; always the same.
"""

import time
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from offleash.eval.problem import Problem
from offleash.eval.tasks.math_tasks import NUMBER_STEPS, MathAnswers
from offleash.eval.verify.extract import TAGGED_STEPS, extract
from offleash.eval.verify.math_answers.answers import answer_class, class_given_gold, compare, is_clear, is_near
from offleash.eval.verify.math_answers.expressions import possible_readings, read, read_equation
from offleash.eval.verify.math_answers.mathematics import MathVerifier, judge_here
from offleash.eval.verify.math_answers.normalize import normalize
from offleash.eval.verify.math_answers.shapes import understand
from offleash.eval.verify.sandbox.workers import Outcome

RELATIVE = Fraction(1, 20)
CPU_SECONDS = 5  # the budget of a single text, thousands of times what one takes
PIECES = [
    "1", "2", "12", "102", "234", "0", "1,000", "0.5", ".5", ".", "...", " ", "x", "y", "n", "i", "e", "\\pi ",
    "\\frac{1}{2}", "\\frac", "\\sqrt{2}", "\\sqrt", "\\log ", "\\sin ", "{", "}", "(", ")", "[", "]", "\\{", "\\}",
    ",", ", ", ";", "=", "<", ">", "\\le ", "\\ne ", "\\cup ", "\\in ", "\\pm ", "\\mid ", "\\approx ", "^", "_", "^2",
    "_2", "^{-1}", "|", "!", "+", "-", "*", "/", ":", "%", "\\%", "\\text{ cm}", "\\text{", "m", "cm", " and ", " or ",
    "\\infty", "\\ldots", "\\cdots", "\\\\", "&", "\\begin{pmatrix}", "\\end{pmatrix}", "\\overline{3}", "^\\circ",
    "²", "½", "\\", "'", "e5", "np.", "\\boxed{", "$", "**", "A", "(B)", "yes", "\x00", "\ud800", "٣", "🙂",
]  # fmt: skip
GOLDS = [
    "17", "\\frac{1}{2}", "3\\sqrt{13}", "x^2+2x+1", "(1,2)", "\\{1,2\\}", "[0,100]", "(2,12) \\cup (12,102)", "1,-2",
    "3x-y=4", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\text{east}", "C", "90^\\circ", "50\\%", "123_7", "1,234",
    "x=2, y=3", "10\\text{ cm}^2", "6-5i", "1 \\pm \\sqrt{2}", "-2 \\le x < 7", "\\{x \\mid x \\ne 2\\}",
    "0.\\overline{3}",
]  # fmt: skip
WRAPPINGS = ["\\boxed{%s}", "%s", "<answer>%s</answer>", "The answer is %s", "<think>%s</think>%s", "#### %s", "**%s**"]
STEADY = settings(
    derandomize=True, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


@st.composite
def changed(draw: st.DrawFn) -> str:
    """A gold with some of its characters replaced, removed or repeated."""
    text = draw(st.sampled_from(GOLDS))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 4)))
        text = text[:start] + draw(st.sampled_from([*PIECES, "", text[start:end] * 2])) + text[end:]
    return text


ANSWERS = st.one_of(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join), changed())


class Undecided:
    """In place of the workers: computer algebra that never sees two things as the same."""

    def map(self, jobs: Sequence[object]) -> list[Outcome]:
        return [Outcome("ok", {"gold_read": True, "answer_read": True, "same": False}) for _ in jobs]


def forget() -> None:
    for cached in (normalize, understand, answer_class, compare, read, read_equation, possible_readings):
        cached.cache_clear()


@settings(STEADY, max_examples=600)
@given(ANSWERS, ANSWERS)
def test_a_verdict_comes_in_time_twice_the_same_and_a_wrong_answer_is_never_in_the_golds_class(
    gold: str, answer: str
) -> None:
    started = time.process_time()
    verdict = judge_here(gold, answer)
    name = class_given_gold(gold, answer, verdict is True)
    is_near(gold, answer, RELATIVE)
    assert time.process_time() - started < CPU_SECONDS
    assert (name == answer_class(gold)) is (verdict is True)
    forget()
    assert (judge_here(gold, answer), class_given_gold(gold, answer, verdict is True)) == (verdict, name)


@settings(STEADY, max_examples=600)
@given(ANSWERS)
def test_an_answer_agrees_with_itself_and_its_class_and_spelling_are_fixed_points(answer: str) -> None:
    assume(normalize(answer))
    assert judge_here(answer, answer) is True
    assert normalize(normalize(answer)) == normalize(answer)
    if is_clear(understand(answer)):
        assert answer_class(answer_class(answer)) == answer_class(answer)


@settings(STEADY, max_examples=600)
@given(ANSWERS, ANSWERS)
def test_agreement_is_symmetric_but_for_percent_signs_bases_and_choices(one: str, other: str) -> None:
    """50 may leave out the sign of 50%, and not the other way round; so it is with 12_7, and with (C) 12 for C."""
    assume(not any(mark in text for mark in ("%", "_", "A", "B", "C") for text in (one, other)))
    assume(not any(read_as.decimal for text in (one, other) if (read_as := understand(text).reading) is not None))
    verdicts = judge_here(one, other), judge_here(other, one)
    assert verdicts[0] == verdicts[1] or None in verdicts


@settings(STEADY, max_examples=400)
@given(ANSWERS, ANSWERS, st.sampled_from(WRAPPINGS), st.sampled_from([{}, {"precision": 1}, {"choices": ["1", "x"]}]))
def test_whole_completions_have_a_status(gold: str, answer: str, wrapping: str, meta: dict[str, object]) -> None:
    problem = Problem("a", "?", gold, meta)
    verifier = MathVerifier()
    verifier.pool = Undecided()  # type: ignore[assignment]
    task = MathAnswers("fuzz", [problem], steps=NUMBER_STEPS, tolerance=0.05, verifier=verifier)
    completion = wrapping.replace("%s", answer)
    verdict = task.verify([problem], [completion])[0]
    assert verdict.status in ("ok", "no_answer")
    assert task.verify([problem], [completion])[0] == verdict
    task.gold_faults()


@pytest.mark.parametrize(
    "unit",
    ["\\boxed{", "\\boxed", "\\fbox ", "{", "}", "\\{", "<answer>", "</answer>", "</think>", "answer is ", "A: ",
     "\n \t", "#### ", "1,", "1/", "-$1", ".", "**", "\\", " ", "\n", "1", "answer"],
)  # fmt: skip
def test_extraction_is_linear_in_a_long_completion(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    started = time.process_time()
    for steps in (NUMBER_STEPS, TAGGED_STEPS):
        for completion in (text, f"\\boxed{{{text}", f"<answer>{text}", f"{text}\\boxed{{7}}{text}"):
            found = extract(completion, steps)
            if found.answer is not None:
                judge_here("17", found.answer)
    assert time.process_time() - started < 2 * CPU_SECONDS


@pytest.mark.parametrize("piece", [piece for piece in PIECES if piece.strip()])
def test_one_piece_repeated_takes_no_time_to_speak_of(piece: str) -> None:
    for text in (piece * (1999 // len(piece)), (piece + " ") * (1999 // (len(piece) + 1)), "1" + piece * 90 + "x"):
        started = time.process_time()
        assert judge_here("17", text[:1999]) is not True
        understand(text[:1999])
        assert time.process_time() - started < CPU_SECONDS
