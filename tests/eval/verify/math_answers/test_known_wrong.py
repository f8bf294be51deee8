"""Verdicts that math-verify is known to get wrong, and ours. Where ours is wrong too it is listed as a limit, with a
number.

Sources: issues of huggingface/Math-Verify (MV), open-r1, deepconf, NeMo-Skills, and what we measured on math-verify
0.9.0.
"""

from collections.abc import Iterator

import pytest

from offleash.eval.verify.extract import MATH_STEPS, extract
from offleash.eval.verify.math_answers.mathematics import MathVerifier

# (gold, answer, is it right, where the complaint is from)
FIXED = [
    # false positives: one of these puts a problem "in support" at large k
    ("\\frac{1}{2004!}", "\\frac{1}{2006!}", False, "MV#14"),
    ("1/2004!", "1/2006!", False, "MV#14"),
    ("0.001234567", "0.001235", False, "measured: six decimal places, whatever the size"),
    ("n=2,3,4", "n=1,2,3", False, "MV#41"),
    ("3x-y+13=0", "3x+4y+14=0", False, "MV#60"),
    ("1-\\frac{1}{e}", "1+\\frac{1}{e}", False, "MV#82"),
    ("1,2,3", "1,2", False, "MV#47: part of an answer"),
    ("1,2", "1,2,3", False, "MV#47"),
    ("\\{1,2\\}", "(1,2)", False, "measured: a set is no pair"),
    ("(1,2)", "\\{1,2\\}", False, "measured"),
    ("1,2", "(2,1)", False, "measured"),
    ("(1,2)", "(2,1)", False, "measured"),
    ("10\\text{ cm}", "10\\text{ m}", False, "measured: units are dropped"),
    ("10\\text{ cm}", "10\\text{ cm}^2", False, "measured"),
    ("123_7", "123_8", False, "measured: bases are dropped"),
    ("0.5", "0.5\\%", False, "measured: percent"),
    ("x=3", "y=3", False, "measured"),
    ("2^{100}", "1267650600228229401496703205377", False, "one more than 2^100"),
    ("5", "\\boxed{}", False, "open-r1#293"),
    ("no", "on", False, "letters are multiplied: an anagram is equal"),
    ("\\text{listen}", "silent", False, "as above"),
    ("(2,12) \\cup (12,102)", "(2,12) \\cup 12102", False, "MATH-500: thousands in brackets"),
    ("[0,100]", "100", False, "thousands in brackets"),
    ("(1,234)", "1,234", False, "thousands in brackets"),
    ("5", "1 # 5", False, "any number in the text"),
    ("5", "3 \\implies 5", False, "any number in the text"),
    ("5", "\\ne 5", False, "any number in the text"),
    ("5", "> 5", False, "any number in the text"),
    ("5", "6 (or 5)", False, "any number in the text"),
    ("10", "5 5", False, "measured: juxtaposed numbers are added"),
    ("5", "5 \\approx 6", False, "measured: the right side is ignored"),
    ("5", "5'", False, "measured: a prime is dropped"),
    ("2", "2 xy", False, "measured: letters are taken for a unit"),
    ("xy", "|xy|", False, "every variable of the point had one sign"),
    ("xy", "\\sqrt{x^2y^2}", False, "as above"),
    ("xyz", "|xz|y", False, "as above"),
    ("x=2, y=3", "3, 2", False, "the order of the unknowns"),
    ("2, 3", "x=3, y=2", False, "the order of the unknowns"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}", False, "a determinant"),
    ("101", "101_2", False, "a base that was not asked for"),
    ("1", "1\\%", False, "one percent is not one"),
    # false negatives
    ("(2,12) \\cup (12,102)", "(2, 12) \\cup (12, 102)", True, "MATH-500: thousands in brackets"),
    ("[-36,104]", "[-36, 104]", True, "thousands in brackets"),
    ("(2,251,252)", "(2, 251, 252)", True, "thousands in brackets"),
    ("(1,1006),(3,331),(11,31)", "(1, 1006), (3, 331), (11, 31)", True, "thousands in brackets"),
    ("5", "5\\ \\mathrm{kg\\,m/s^2}", True, "units in \\mathrm"),
    ("5", "5\\,\\mathrm{m}\\,\\mathrm{s}^{-1}", True, "units in \\mathrm"),
    ("1", "|AB|=1", True, "the length of a segment"),
    ("\\frac{NO}{BO}=\\frac{1}{\\sqrt{6}}", "\\frac{1}{\\sqrt{6}}", True, "a ratio of segments"),
    ("3.5", "3,5", True, "a decimal comma"),
    ("3,5 cm", "3.5", True, "a decimal comma"),
    ("0.335", "33.5 pct", True, "percent abbreviated"),
    ("1000", "1 000", True, "thousands set apart by a space"),
    ("5", "5\\", True, "a trailing backslash"),
    ("5", "=5", True, "an equals sign before it"),
    ("51 (trucks)", "51", True, "a noun in brackets"),
    ("np.arcsin(10/13)", "\\arcsin(10/13)", True, "a formula in Python"),
    ("\\{x \\mid x>3\\}", "(3,\\infty)", True, "set-builder notation"),
    ("\\{x \\in \\mathbb{R} : 1 \\le x < 2\\}", "[1,2)", True, "set-builder notation"),
    ("\\{x|x\\neq 2\\}", "(-\\infty,2)\\cup(2,\\infty)", True, "set-builder notation"),
    ("x != 3", "x \\neq 3", True, "inequality in plain text"),
    ("p=5,q=2;p=7,q=2", "(5,2),(7,2)", True, "groups of named values"),
    ("1\\frac{1}{2}", "1 1/2", True, "measured: mixed numbers in plain text"),
    ("100000", "1e5", True, "measured"),
    ("[1,2)", "1 \\le x < 2", True, "measured: one way only"),
    ("1 \\le x < 2", "[1,2)", True, "measured"),
    ("(-\\infty, 2) \\cup (3, \\infty)", "x<2 \\text{ or } x>3", True, "measured"),
    ("x \\in [-2,7]", "[-2,7]", True, "measured"),
    ("C", "C. 12", True, "measured: a choice with its text"),
    ("\\text{(C)}", "(C) 12", True, "measured"),
    ("73", "**73**", True, "MV#57: parsed as 234"),
    ("\\frac{1}{2}", "0.5", True, "deepconf#15"),
    ("\\text{Navin}", "x=\\text{Navin}", True, "measured"),
    # and what must not be lost on the way
    ("50\\%", "0.5", True, "equal"),
    ("50\\%", "50", True, "the sign left out"),
    ("10\\text{ cm}", "10", True, "the unit left out"),
    ("10", "10\\text{ cm}", True, "the unit added"),
    ("123_7", "123", True, "the base left out"),
    ("x=2, y=3", "2, 3", True, "the names left out"),
    ("x=2, y=3", "y=3, x=2", True, "named, in another order"),
    ("x_1=2, x_2=3", "3, 2", True, "roots have no order"),
    ("1,234", "1234", True, "thousands"),
    ("\\frac{1,234}{5}", "246.8", True, "thousands in a numerator"),
    ("1,234", "1.234", False, "thousands, not a decimal comma"),
    ("10", "10_{10}", True, "the base is ten"),
    ("\\frac{1}{3}", "\\frac{1}{3} \\approx 0.333", True, "a value with its approximation"),
    ("x=5", "5", True, "MV#10: asymmetric"),
    ("5", "x=5", True, "MV#10"),
    ("(3,\\frac{\\pi}{2})", "3, \\pi/2", True, "brackets left out"),
    ("1,-2", "-2, 1", True, "a list has no order"),
    ("\\frac{1}{3}", "0.333333", True, "six decimal places"),
    ("\\frac{1}{3}", "0.33", False, "two are not enough"),
    ("y=2x+3", "2x-y+3=0", True, "the same line"),
    ("x^2+2x+1", "(x+1)^2", True, "the same polynomial"),
]

# (number, gold, answer, our verdict, the truth, why)
LIMITS = [
    (1, "2^{2^{30}}", "4^{2^{29}}", False, True, "values over the caps are compared as text"),
    (2, "1\\text{ m}", "100\\text{ cm}", False, True, "units are not converted"),
    (3, "\\$5.40", "540\\text{ cents}", False, True, "as 2"),
    (4, "90^\\circ", "\\frac{\\pi}{2}", False, True, "degrees and radians are not converted"),
    (5, "2220_5", "310", False, True, "bases are not converted"),
    (6, "(1,2)", "1<x<2", True, False, "a point and an open interval are written alike"),
    (7, "50", "50\\%", True, False, "a percent sign is taken as a unit where the gold is 1 or more"),
    (8, "\\ln(xy)", "\\ln x+\\ln y", False, True, "identities that hold for positive variables only"),
    (9, "\\text{east}", "due east", False, True, "words are compared letter by letter"),
    (10, "100, 200", "100,200", False, True, "100,200 without a space is one number"),
    (11, "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(1,2)", False, True, "a column is not taken for a tuple"),
    (12, "2,3", "2,3,3", True, False, "repeated members of a list count once"),
    (13, "\\frac{x}{2}", "1/2x", False, True, "1/2x is read as 1/(2x)"),
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    made = MathVerifier(job_seconds=20)
    yield made
    made.close()


@pytest.mark.parametrize(("gold", "answer", "right", "source"), FIXED)
def test_known_wrong_verdicts_are_fixed(
    verifier: MathVerifier, gold: str, answer: str, right: bool, source: str
) -> None:
    judgment = verifier.judge([gold], [answer])[0]
    assert (judgment.status, judgment.correct) == ("ok", right), source


@pytest.mark.parametrize(("number", "gold", "answer", "ours", "truth", "why"), LIMITS)
def test_known_limits_are_as_listed(
    verifier: MathVerifier, number: int, gold: str, answer: str, ours: bool, truth: bool, why: str
) -> None:
    """Fails when a limit is lifted, so that the list stays true."""
    judgment = verifier.judge([gold], [answer])[0]
    assert ours != truth
    assert (judgment.status, judgment.correct) == ("ok", ours), f"limit {number}: {why}"


def test_the_wrong_never_share_the_golds_class(verifier: MathVerifier) -> None:
    for gold, answer, right, _ in FIXED:
        own, golden = verifier.judge([gold, gold], [answer, gold])
        assert (own.answer == golden.answer) is right, (gold, answer, own.answer)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("So \\boxed{840}. Checking again, \\boxed{840}", "840"),  # MV#44, #76: several boxes become a set
        ("First \\boxed{1}, no: \\boxed{2}", "2"),
        ("The answer is **\\boxed{73}**", "73"),
        ("\\boxed{**73**}", "73"),
        ("\\boxed{\\text{The answer is } \\boxed{7}}", "7"),
    ],
)
def test_one_answer_is_taken_from_several_boxes(completion: str, answer: str) -> None:
    assert extract(completion, MATH_STEPS) == (answer, "boxed")
