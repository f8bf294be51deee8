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
    ("1,234 and 5,678", "1234 and 5678"),
    ("x = 12,345.6", "x = 12345.6"),
    ("(1,234)", "(1,234)"),
    ("\\{1,234\\}", "\\{1,234\\}"),
    ("(1{,}234, 5)", "(1234, 5)"),
    ("0,111", "0,111"),
    ("1 000 dollars", "1000 dollars"),
    ("1 2 345", "1 2 345"),
    ("5!=120", "5!=120"),
    ("\\(1\\) and \\(2\\)", "1 and 2"),
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
        ("10\\text{ m/s}", ("10", "m s^-1")),
        ("5\\text{kg}\\cdot\\text{m}\\text{s}^{-2}", ("5", "kg m s^-2")),
        ("51 (trucks)", ("51", "trucks")),
        ("6 (or 5)", ("6 (or 5)", "")),
        ("5 not six", ("5 not six", "")),
        ("2 xy", ("2 xy", "")),
        ("2 x", ("2 x", "")),
        ("x^2", ("x^2", "")),
        ("5", ("5", "")),
    ],
)
def test_units_are_told_from_values(text: str, parts: tuple[str, str]) -> None:
    assert split_unit(text) == parts


def test_no_more_than_the_limit_is_looked_at() -> None:
    assert len(normalize("7" * 10_000_000)) <= MAX_ANSWER_CHARS + 1
