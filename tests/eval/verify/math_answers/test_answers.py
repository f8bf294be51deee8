"""Answer classes: stable, symmetric, idempotent; and agreement with the gold."""

import itertools
import random

import pytest

from offleash.eval.verify.math_answers.answers import answer_class, class_given_gold, compare
from offleash.eval.verify.math_answers.shapes import understand

CLASSES = [
    ["0.5", "1/2", "\\frac12", ".50", "\\frac{1}{2}", "50\\%", "$\\frac{1}{2}$", "\\dfrac{2}{4}", "x = 0.5",
     "0.5 \\text{ cm}", "½", "**0.5**"],
    ["1000", "1,000", "1{,}000", "1\\,000", "1e3", "10^3", "\\$1,000", "1000.", "1000.00", "1.0 \\times 10^{3}",
     "1000 dollars"],
    ["-3", "−3", "- 3", "(-3)", "\\boxed{-3}", "-3.0", "x=-3"],
    ["3/2", "1 1/2", "1\\frac12", "1.5", "1 \\frac{1}{2}"],
    ["1/3", "0.\\overline{3}", "\\frac{1}{3}"],
    ["\\sqrt{12}", "2\\sqrt{3}", "2√3"],
    ["{1, 2}", "2, 1", "\\{1,2\\}", "1 and 2", "2 \\text{ or } 1", "1,2,1", "x=1 \\text{ or } x=2"],
    ["(1, 2)", "\\left(1,2\\right)", "( 1 , 2 )", "1<x<2", "\\langle 1, 2\\rangle"],
    ["[1, 2)", "1 \\le x < 2", "2 > x \\ge 1", "x \\in [1,2)"],
    ["(-\\infty, 3]", "x \\le 3", "3 \\geq x", "(-∞,3]"],
    ["(-\\infty, 2) ∪ (3, \\infty)", "x<2 \\text{ or } x>3", "(3,\\infty) \\cup (-\\infty,2)"],
    ["(0, 3)", "(0,2) \\cup (1,3)", "(0,1] \\cup (1,3)", "(1,3) \\cup (0,1) \\cup [1,2]", "0<x<3"],
    ["(0, 1) ∪ (1, 3)", "(1,3) \\cup (0,1)"],
    ["{-2, 2}", "\\pm 2", "x = \\pm 2", "2,-2"],
    ["evelyn", "\\text{Evelyn}", "Evelyn", "\\textbf{evelyn}", "Evelyn."],
    ["90", "90^\\circ", "90°", "90 degrees", "90^{\\circ}"],
    ["f(x)", "x^2+1", "1+x^2", "y = x^2+1", "f(x)=x^2+1"],
    ["matrix", "\\begin{pmatrix}1 & 2\\\\3 & 4\\end{pmatrix}", "\\begin{bmatrix} 1&2 \\\\ 3&4 \\end{bmatrix}"],
    ["\\emptyset", "\\{\\}", "∅", "\\varnothing"],
]  # fmt: skip
GOLDS = ["5", "\\frac{1}{2}", "50\\%", "10 \\text{ cm}", "x=3", "(1,2)", "1,2", "\\{1,2\\}", "[0,1)", "C",
    "\\text{east}", "x^2+1", "y=2x+3", "123_7",
         "3x-y=4", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"]  # fmt: skip
STRANGE = ["", "?", "1:2", "3:30", "a b c", "\\frac{1}{", "{", "1,,2", "x=", "=5", "5 = ", "<", "x<", "\\text{",
    "1 2", "10 \\text{ m}", "y=3", "123_8",
           "(1,2,3)", "C. 12", "(D)", "0.5%", "5?", "\\int x dx", "9^{9^9}", "🙂", "1/0", "f(x y)#0123456789ab",
           "≈1.5", "#0123456789abcdef"]  # fmt: skip


@pytest.mark.parametrize("spellings", CLASSES, ids=lambda spellings: spellings[0])
def test_spellings_of_one_answer_share_a_class(spellings: list[str]) -> None:
    spellings = spellings[1:] if spellings[0] in ("f(x)", "matrix") else spellings
    assert len({answer_class(spelling) for spelling in spellings}) == 1, [answer_class(s) for s in spellings]


def test_readable_answers_have_readable_classes() -> None:
    assert [answer_class(text) for text in (".50", "1e3", "2, 1", "\\text{Evelyn}", "x \\le 3")] == [
        "1/2",
        "1000",
        "{1, 2}",
        "evelyn",
        "(-\\infty, 3]",
    ]


def test_different_answers_have_different_classes() -> None:
    firsts = [spellings[1] for spellings in CLASSES]
    for one, other in itertools.combinations(firsts, 2):
        assert answer_class(one) != answer_class(other), (one, other)


def everything() -> list[str]:
    return [*itertools.chain(*CLASSES), *GOLDS, *STRANGE]


def test_the_class_of_a_class_is_itself() -> None:
    for text in everything():
        assert answer_class(answer_class(text)) == answer_class(text), text


def test_the_class_given_a_gold_is_a_fixed_point_too() -> None:
    for gold in GOLDS:
        for text in everything():
            if compare(gold, text) is not True:
                once = class_given_gold(gold, text, False)
                assert class_given_gold(gold, once, False) == once, (gold, text)


def test_classes_do_not_depend_on_order_or_on_what_else_was_seen() -> None:
    texts = everything()

    def classes(order: list[str]) -> dict[tuple[str, str], str]:
        for cached in (answer_class, understand, compare):
            cached.cache_clear()
        return {
            (gold, text): class_given_gold(gold, text, compare(gold, text) is True) for text in order for gold in GOLDS
        }

    shuffled = texts[:]
    random.Random(1).shuffle(shuffled)
    assert classes(texts) == classes(shuffled)


def test_a_wrong_answer_never_gets_the_golds_class_and_a_right_one_always_does() -> None:
    for gold in GOLDS:
        for text in everything():
            right = compare(gold, text) is True
            assert (class_given_gold(gold, text, right) == answer_class(gold)) is right, (gold, text)


def test_every_gold_agrees_with_itself_and_with_no_other() -> None:
    for gold, other in itertools.product(GOLDS, GOLDS):
        verdict = compare(gold, other)
        related = {gold, other} in ({"\\frac{1}{2}", "50\\%"}, {"(1,2)", "1,2"}, {"1,2", "\\{1,2\\}"})
        assert verdict is (True if gold == other or related else verdict)
        if gold != other and not related:
            assert verdict is not True, (gold, other)


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("x=1,y=2", "y=2, x=1", True),
        ("x=1,y=2", "x=2, y=1", False),
        ("(x,y)=(1,2)", "(1,2)", True),
        ("5", "1+4=5", True),
        ("5", "x=2+3=5", True),
        ("5", "5=x", True),
        ("f(x)=x^2", "x^2", True),
        ("2:3", "2:3", True),
        ("\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}", "\\begin{pmatrix}1&0\\\\0&2\\end{pmatrix}", False),
        ("\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}", "\\begin{pmatrix}1&0&0\\end{pmatrix}", False),
        ("(0.5, 2)", "(\\frac12, 2.0)", True),
        ("(1,2,3)", "(1,2)", False),
        ("12 \\text{ hours}", "12 hrs", True),
        ("12 \\text{ hours}", "12 minutes", False),
        ("5 \\text{ apples}", "5 \\text{ fruits}", True),
        ("(0,3)", "(0,1) \\cup (1,3)", False),
        ("(0,3)", "(0,1] \\cup (1,3)", True),
        ("(0,a)", "(0,b) \\cup (b,a)", None),
        ("x", "|x|", False),
        ("2", "\\log 100", None),
        ("3", "\\log 100", False),
        ("\\log 100", "2", None),
        ("\\frac{x}{2}", "1/2x", None),
        ("\\frac{x}{3}", "1/2x", False),
        ("5", "about 5 of them, give or take some", False),
        ("\\int x dx", "5", None),
    ],
)
def test_agreement(gold: str, answer: str, expected: bool | None) -> None:
    assert compare(gold, answer) is expected
