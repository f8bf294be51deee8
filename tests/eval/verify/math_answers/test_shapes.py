"""Answers taken apart."""

import time

import pytest

from offleash.eval.verify.math_answers.shapes import MAX_NESTING, understand


@pytest.mark.parametrize(
    ("text", "kind", "parts"),
    [
        ("5", "leaf", 0),
        ("(5)", "leaf", 0),
        ("\\{5\\}", "leaf", 0),
        ("1, 2", "bare", 2),
        ("1 and 2", "bare", 2),
        ("(1, 2)", "tuple", 2),
        ("[1, 2)", "left", 2),
        ("(1, 2]", "right", 2),
        ("[1, 2]", "closed", 2),
        ("\\{1, 2, 3\\}", "set", 3),
        ("(1,2) \\cup (3,4)", "union", 2),
        ("1 < x \\le 2", "right", 2),
        ("x > 3", "tuple", 2),
        ("x^2 < 3", "relation", 0),
        ("1 \\pm 2", "bare", 2),
        ("x \\in (1,2)", "tuple", 2),
        ("3x - y = 4", "equation", 2),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "matrix", 2),
        ("\\text{east}", "words", 0),
        ("(1,2),(3,4)", "bare", 2),
        ("((1,2),3)", "tuple", 2),
        ("f(1, 2)", "leaf", 0),
    ],
)
def test_the_shape_of_an_answer(text: str, kind: str, parts: int) -> None:
    answer = understand(text)
    assert (answer.kind, len(answer.items)) == (kind, parts)


def test_names_units_bases_and_percent_signs_are_set_apart() -> None:
    assert (understand("x = 5").name, understand("x = 5").text) == ("x", "5")
    assert understand("n = 2, 3").name == "n"
    assert (understand("10 \\text{ cm}^2").unit, understand("10 \\text{ cm}^2").text) == ("cm^2", "10")
    assert (understand("123_7").base, understand("123_{7}").base) == ("7", "7")
    assert understand("50\\%").percent
    assert understand("5 = x").name == "x"


def test_depth_and_number_of_parts_are_bounded() -> None:
    deep = "(" * 3 + "1,2" + "),3" * 3
    assert understand(deep).kind == "bare"
    nested = "(1," * (MAX_NESTING + 3) + "2" + ")" * (MAX_NESTING + 3)
    started = time.process_time()
    understand(nested)
    understand(",".join("1" for _ in range(900)))
    understand("((1,2)," * 200)
    assert time.process_time() - started < 5
    assert understand("x" * 100_000).too_large
