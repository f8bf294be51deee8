"""math-verify as we call it."""

import pytest

from offleash.eval.verify.math_answers.symbolic import judge


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("\\int_0^1 2x dx", "1", True),
        ("\\int_0^1 2x dx", "2", False),
        ("1/2004!", "1/2006!", False),
        ("\\frac{1}{3}", "0.333333", True),
        ("[1,2)", "1 \\le x < 2", True),
    ],
)
def test_verdicts(gold: str, answer: str, same: bool) -> None:
    assert judge({"gold": gold, "answer": answer}) == {"gold_read": True, "answer_read": True, "same": same}


def test_what_cannot_be_read_is_never_the_same() -> None:
    assert judge({"gold": "", "answer": ""}) == {"gold_read": False, "answer_read": False, "same": False}
    assert not judge({"gold": "5", "answer": ""})["same"]


@pytest.mark.parametrize(
    "text",
    [
        *("1 # 5", "3 \\implies 5", "6 (or 5)", "5 5", "5'", "5 \\approx 6", "no \\boxed{5"),
        *(
            "2^\\frac{5}{1}\\}",
            "x \\neq \\frac{5}{1}|",
            "\\sqrt{\\frac{5}{1}",
            "x \\ne \\} [ 5 ] )",
            "answer: [5] \\log|",
        ),
    ],
)
def test_a_text_is_read_whole_or_not_at_all(text: str) -> None:
    assert not judge({"gold": "5", "answer": text})["answer_read"]
    assert not judge({"gold": text, "answer": "5"})["gold_read"]
