"""The paper's spellings (B.3), and what never reaches a scorer that executes its input."""

import time

import pytest

from offleash.eval.tasks.gym.answers import EXECUTED, refused, spelled


@pytest.mark.parametrize(
    ("dataset", "answer", "expected"),
    [
        ("dice", "\\frac{5}{12}", "5/12"),
        ("dice", "\\dfrac{5}{12}", "5/12"),
        ("dice", "$5 / 12$", "5/12"),
        ("prime_factorization", "60 = 2^2 \\times 3 \\times 5", "2 × 2 × 3 × 5"),
        ("prime_factorization", "2^{3} \\cdot 7", "2 × 2 × 2 × 7"),
        ("palindrome_generation", "r a c e c a r", "racecar"),
        ("advanced_geometry", "\\left(\\frac{158}{39}, -\\frac{214}{39}\\right)", "(4.051, -5.487)"),
        ("advanced_geometry", "16.91^\\circ", "16.91°"),
        ("advanced_geometry", "46.25°", "46.25°"),
        ("advanced_geometry", "\\frac{\\sqrt{13}}{2}", "1.803"),
        ("advanced_geometry", "2.176", "2.176"),
        ("power_function", "1.5 \\times 10^{-3}", "1.5e-3"),
        ("power_function", "-2.25 x 10^12", "-2.25e12"),
        ("arc_1d", "\\begin{array}{ccc} 1 & 0 & 2 \\end{array}", "1 0 2"),
        ("arc_1d", "102", "1 0 2"),
        ("arc_1d", "[1, 0, 2]", "1 0 2"),
        ("boxnet", '```json\n{"Agent[0.5, 0.5]": "move(a, b)"}\n```', '[{"Agent[0.5, 0.5]": "move(a, b)"}]'),
        ("boxnet", '[{"a": ["x", "y"]}, 3]', '[{"a": "x"}]'),
        ("boxnet", '[{"b": {"b": "z", "c": "w"}}, {"d": {"e": "v"}}]', '[{"b": "z"}, {"d": "v"}]'),
        ("boxnet", "17", "[]"),
        ("boxnet", "not json", "not json"),
        ("chain_sum", "  5 ", "5"),
    ],
)  # fmt: skip
def test_spellings_of_the_paper(dataset: str, answer: str, expected: str) -> None:
    assert spelled(dataset, answer) == expected


ATTACKS = [
    "__import__('os').system('touch /tmp/x')",
    "open('/tmp/x', 'w')",
    "().__class__.__mro__",
    "9**9**9",
    "9^9^9",
    "[x for x in (1,)]",
    "exec('1')",
    "lambda: 0",
    "factorial(99999)",
    "1" * 5000,
    "a" * 50_000,
    "Symbol('x')",
    "integrate(x, x)",
    "x.y",
    "2**99999999",
    "(2**9)**(9**9)",
    "eval(x)",
]


@pytest.mark.parametrize("dataset", EXECUTED)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack[:20])
def test_nothing_executable_reaches_a_scorer_that_executes(dataset: str, attack: str) -> None:
    plain = EXECUTED[dataset] is EXECUTED["n_queens"] and set(attack) <= set("1xay.")  # names and digits do nothing
    assert plain or refused(dataset, attack) is not None


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("countdown", "94*4 - 61 - 6"),
        ("countdown", "(1+2)/3"),
        ("simple_integration", "-34*x**8/15 - 5*x/4 + C"),
        ("intermediate_integration", "-4*(-2*x - 8)**(3/2)/3 + C"),
        ("intermediate_integration", "exp(x)*sin(x) + exp(x)*cos(x) + C"),
        ("polynomial_multiplication", "-896*x**4 + 2240*x**3 + 3584*x"),
        ("n_queens", "_ _ Q _\nQ _ _ _\n_ _ _ Q\n_ Q _ _"),
        ("spiral_matrix", "4 6 7 -3 9"),
        ("string_insertion", "EACADDDDB"),
        ("chain_sum", "__import__('os')"),
    ],
)
def test_honest_answers_do(dataset: str, answer: str) -> None:
    assert refused(dataset, answer) is None


def test_hostile_text_is_spelled_quickly() -> None:
    for dataset in ("dice", "prime_factorization", "advanced_geometry", "power_function", "arc_1d", "boxnet"):
        for text in (
            "2^9" * 5000,
            "[" * 20_000,
            "\\frac{1}{2}" * 1500,
            "9" * 20_000,
            "1" + " " * 19_000 + "2",
            "\\begin{" * 2500,
        ):
            started = time.process_time()
            spelled(dataset, text)
            assert time.process_time() - started < 5, (dataset, text[:10])
