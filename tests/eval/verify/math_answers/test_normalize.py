"""One spelling for one answer, and the unit apart from the value."""

import pytest

from offleash.eval.verify.math_answers.normalize import MAX_ANSWER_CHARS, normalize, split_unit

SPELLINGS = [
    ("  $5$ ", "5"),
    ("\\(5\\)", "5"),
    ("**73**", "73"),
    ("x**2", "x^2"),
    ("\\left( 1, 2 \\right)", "( 1, 2 )"),
    ("\\dfrac{1}{2}", "\\frac{1}{2}"),
    ("11,\\! 111,\\! 100", "11111100"),
    ("1,2,3,400", "1,2,3,400"),
    ("1, 2", "1, 2"),
    ("\\$32,\\!348", "32348"),
    ("5.", "5"),
    ("90^{\\circ}", "90^\\circ"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    ("a\\ b", "a b"),
    ("5\x00", "5"),
    ("\\boxed{5}", "5"),
]


@pytest.mark.parametrize(("raw", "expected"), SPELLINGS)
def test_markup_goes_and_meaning_stays(raw: str, expected: str) -> None:
    assert normalize(raw) == expected


@pytest.mark.parametrize(("raw", "expected"), SPELLINGS)
def test_normalising_twice_changes_nothing(raw: str, expected: str) -> None:
    assert normalize(normalize(raw)) == normalize(raw)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("10\\text{ cm}", ("10", "cm")),
        ("864 \\text{ inches}^2", ("864", "in^2")),
        ("5 square feet", ("5", "ft^2")),
        ("18 dollars", ("18", "dollar")),
        ("3 hours per day", ("3", "hours per day")),
        ("90^\\circ", ("90", "degree")),
        ("\\frac{270}7\\text{ degrees}", ("\\frac{270}7", "degree")),
        ("5 and 6", ("5 and 6", "")),
        ("2 x", ("2 x", "")),
        ("x^2", ("x^2", "")),
        ("5", ("5", "")),
    ],
)
def test_units_are_told_from_values(text: str, parts: tuple[str, str]) -> None:
    assert split_unit(text) == parts


def test_no_more_than_the_limit_is_looked_at() -> None:
    assert len(normalize("7" * 10_000_000)) <= MAX_ANSWER_CHARS + 1
