"""The formula reader against sympy, against closed forms, and at its limits."""

import random
from fractions import Fraction

import pytest
import sympy

from offleash.eval.verify.math_answers.expressions import Reading, possible_readings, read, read_equation

SAME = [
    (
        "1/2",
        "0.50",
        ".5",
        "\\frac12",
        "\\frac{1}{2}",
        "\\frac{2}{4}",
        "2^{-1}",
        "\\sin(\\pi/6)",
        "\\frac{\\sqrt{4}}{4}",
    ),
    ("3/2", "1\\frac{1}{2}", "1\\frac12", "1.5"),
    ("\\sqrt{12}", "2\\sqrt3", "2\\sqrt{3}", "\\frac{6}{\\sqrt{3}}", "12^{1/2}"),
    ("1+\\sqrt2", "\\sqrt{3+2\\sqrt2}"),
    ("4", "8^{2/3}", "\\sqrt{16}", "\\sqrt[3]{64}", "\\log_2 16", "2^2", "(1+i)^4 * -1", "|-4|"),
    ("x^2+2x+1", "(x+1)^2", "(x+1)(x+1)", "x(x+2)+1", "x**2+1+2*x".replace("**", "^")),
    ("\\frac{x+1}{x-1}", "1+\\frac{2}{x-1}", "(x+1)/(x-1)"),
    ("1", "\\sin^2 x+\\cos^2 x", "x^0", "x/x", "5!/120", "e^{0}"),
    ("\\tan x", "\\frac{\\sin x}{\\cos x}"),
    ("-1", "e^{i\\pi}", "i^2", "--(-1)"),
    ("120", "\\binom{10}{3}", "5!"),
    ("x_1+x_{2}", "x_2+x_1"),
    ("a^{m+n}", "a^m a^n", "a^n \\cdot a^m"),
    ("2\\pi", "\\pi \\times 2", "2 \\pi"),
    ("\\exp(200)", "e^{200}", "e^{100}e^{100}"),
    ("0", "\\sin(\\pi)", "x-x", "\\ln 1", "\\sin(0)", "\\sqrt{2}-\\frac{2}{\\sqrt{2}}"),
]
DIFFERENT = [
    ("1-\\frac{1}{e}", "1+\\frac{1}{e}"),
    ("1/2004!", "1/2006!"),
    ("2^{100}", "2^{100}+1"),
    ("x", "|x|"),
    ("x", "y"),
    ("x_1", "x_2"),
    ("-x^2", "(-x)^2"),
    ("2^{3^2}", "(2^3)^2"),
    ("\\exp(-200)", "0"),
    ("\\sin(10^{-8})", "10^{-8}"),
    ("x+1", "x+1.0000000000001"),
    ("\\sqrt{2}", "1.41421356237309504880168872420969807856967187537695"),
]


@pytest.mark.parametrize("spellings", SAME, ids=lambda spellings: spellings[0])
def test_equal_values_have_one_key(spellings: tuple[str, ...]) -> None:
    readings = [read(spelling) for spelling in spellings]
    assert all(isinstance(reading, Reading) for reading in readings), list(zip(spellings, readings, strict=True))
    assert len({reading.key for reading in readings if isinstance(reading, Reading)}) == 1


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_values_have_different_keys(one: str, other: str) -> None:
    first, second = read(one), read(other)
    assert isinstance(first, Reading)
    assert isinstance(second, Reading)
    assert first.key != second.key


def test_numbers_are_exact() -> None:
    reading = read("\\frac{1}{3}+\\frac{1}{6}")
    assert isinstance(reading, Reading)
    assert reading.exact == Fraction(1, 2)
    decimal, formula = read("0.25"), read("1/4")
    assert isinstance(decimal, Reading)
    assert isinstance(formula, Reading)
    assert decimal.decimal
    assert not formula.decimal


def random_expression(rng: random.Random, depth: int) -> sympy.Expr:
    x, y = sympy.symbols("x y")
    if depth == 0:
        return rng.choice(
            [x, y, sympy.Integer(rng.randint(1, 9)), sympy.Rational(rng.randint(1, 9), rng.randint(2, 9))]
        )
    left, right = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    return rng.choice(
        [
            left + right,
            left - right,
            left * right,
            left / (right**2 + 1),
            left**2,
            sympy.sqrt(left**2 + 2),
            sympy.sin(left),
        ]
    )


def test_rewritten_formulas_keep_their_key_and_changed_ones_do_not() -> None:
    """sympy writes, expands and factors; the reader must see one value, and another for one that differs by little."""
    rng = random.Random(0)
    compared = 0
    for _ in range(60):
        expression = random_expression(rng, 3)
        forms = {sympy.latex(form) for form in (expression, sympy.expand(expression), sympy.together(expression))}
        readings = [read(form.replace("\\left", "").replace("\\right", "")) for form in forms]
        keys = {reading.key for reading in readings if isinstance(reading, Reading)}
        if not keys:
            continue
        compared += 1
        assert len(keys) == 1, forms
        changed = read(sympy.latex(expression + sympy.Rational(1, 10**6)).replace("\\left", "").replace("\\right", ""))
        assert not isinstance(changed, Reading) or changed.key not in keys
    assert compared > 40


def test_equations_are_known_up_to_a_factor_and_the_order_of_sides() -> None:
    line = read_equation("y", "2x+3")
    assert line is not None
    assert line == read_equation("2x-y+3", "0") == read_equation("0", "4x-2y+6") == read_equation("2x+3", "y")
    assert line != read_equation("y", "2x+4")
    assert read_equation("3x-y+13", "0") != read_equation("3x+4y+14", "0")
    assert read_equation("1", "1") is None
    assert read_equation("x", "x") is None


def test_every_way_to_read_an_ambiguous_formula() -> None:
    logarithms = possible_readings("\\log 100")
    assert len(logarithms) == 2
    assert logarithms[0].key == "2"
    halves = {reading.key for reading in possible_readings("1/2x")}
    assert halves == {read(form).key for form in ("\\frac{x}{2}", "\\frac{1}{2x}")}  # type: ignore[union-attr]
    assert possible_readings("\\foo") == ()
    assert [reading.key for reading in possible_readings("1/2")] == ["1/2"]


def test_a_key_does_not_depend_on_what_was_read_before() -> None:
    formulas = [spelling for spellings in SAME for spelling in spellings]

    def keys(order: list[str]) -> dict[str, object]:
        read.cache_clear()
        return {text: read(text) for text in order}

    assert keys(formulas) == keys(formulas[::-1])
