"""The canonical form against polynomials that are multiplied out, the parser against Python's own grammar."""

import ast
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from offleash.eval.tasks.arithmetic import Expression, parenthesised, parse
from tests.eval.tasks.trees import fully_parenthesised, python_value, reference_class


def read(text: str) -> Expression:
    expression = parse(text)
    assert expression is not None, text
    return expression


def check_one_name_per_class(texts: list[str]) -> int:
    """That two texts have one name exactly if they are one class by brute force; how many classes there are."""
    names: dict[tuple[object, ...], set[str]] = {}
    for text in texts:
        names.setdefault(reference_class(text), set()).add(read(text).solution)
    assert {len(of_class) for of_class in names.values()} == {1}
    assert len(set.union(*names.values())) == len(names)
    return len(names)


@pytest.mark.parametrize(
    "numbers",
    [
        *[(2, 3), (4, 4), (1, 2, 3), (4, 4, 3), (4, 4, 4), (2, 3, 7, 25)],
        *[(4, 4, 3, 7), (4, 4, 3, 3), (4, 4, 4, 3), (4, 4, 4, 4)],
    ],
)
def test_expressions_share_a_name_exactly_if_they_are_the_same_polynomial(numbers: tuple[int, ...]) -> None:
    check_one_name_per_class(list(fully_parenthesised(numbers)))


def test_three_different_numbers_have_as_many_solutions_as_counted_by_hand() -> None:
    """Sums: 8 signs less all minus. Products: 1. a*b+-c and c-a*b: 3 each of 3. (a+-b)*c: 3 each of 3."""
    assert check_one_name_per_class(list(fully_parenthesised((2, 3, 7)))) == 7 + 1 + 9 + 9


def test_five_numbers_share_a_name_exactly_if_they_are_the_same_polynomial() -> None:
    rng = np.random.default_rng(0)
    texts = [random_text(rng, [2, 3, 7, 25, 9][:size]) for size in (4, 5) for _ in range(2500)]
    texts += [random_text(rng, [4, 4, 3, 3, 7]) for _ in range(1500)]
    assert 500 < check_one_name_per_class(texts) < len({read(text).spelling for text in texts})


def random_text(rng: np.random.Generator, numbers: list[int]) -> str:
    hand = [str(number) for number in numbers]
    while len(hand) > 1:
        left = hand.pop(int(rng.integers(len(hand))))
        right = hand.pop(int(rng.integers(len(hand))))
        hand.append(f"({left}{rng.choice(list('+-*'))}{right})")
    return hand[0]


@pytest.mark.parametrize("numbers", [(2, 3, 7, 25), (4, 4, 3, 7), (4, 4, 3, 3)])
def test_the_name_of_a_solution_is_a_spelling_of_it(numbers: tuple[int, ...]) -> None:
    for text in fully_parenthesised(numbers):
        name = read(text).solution
        assert read(name).solution == read(name).spelling == name
        assert python_value(name) == python_value(text)
        assert read(name).numbers == tuple(sorted(numbers))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a+b*c", "c*b+a"),
        ("a-(b-c)", "a-b+c"),
        ("a-(b+c)", "a-c-b"),
        ("(a-b)*(c-d)", "(d-c)*(b-a)"),
        ("a-b*(c-d)", "b*(d-c)+a"),
        ("(c-d)*a-b", "a*(c-d)-b"),
        ("4+3-4", "3+4-4"),
        ("a+(4-4)*b", "a-b*(4-4)"),
        ("a+((4-4)*b-c)*d", "a-((4-4)*b+c)*d"),
    ],
)
def test_these_are_one_solution(one: str, other: str) -> None:
    assert read(named(one)).solution == read(named(other)).solution


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2*2+3", "2+2+3"),
        ("(5+3)*(5-3)", "5*5-3*3"),
        ("7*(4-4)*3", "7*3*4-4"),
        ("(4-4)*3*5+7", "(4-4)*(3+5)+7"),
        ("1*a+b", "a+b*1"),
    ],
)
def test_these_are_two_solutions(one: str, other: str) -> None:
    assert read(named(one)).solution != read(named(other)).solution


def named(text: str) -> str:
    return text.translate(str.maketrans({"a": "13", "b": "14", "c": "25", "d": "6"}))


def test_a_solution_of_the_longest_texts_is_not_multiplied_out() -> None:
    product_of_sums = "*".join(["(1-2)"] * 33)  # 2 ** 33 monomials
    assert len(read(product_of_sums).solution) == len(product_of_sums)
    nested = "1"
    while len(nested) < 180 and nested.count("(") < 20:
        nested = f"7-({nested})*2"
    assert read(read(nested).solution).solution == read(nested).solution


def test_a_spelling_keeps_value_numbers_and_operand_order() -> None:
    for text in fully_parenthesised((2, 3, 7, 25)):
        spelling = read(text).spelling
        assert python_value(spelling) == python_value(text) == read(text).value
        assert [c for c in spelling if c not in "()"] == [c for c in text if c not in "()"]
        assert read(spelling).spelling == spelling


def test_a_spelling_has_no_removable_parentheses() -> None:
    """No pair can go without changing the spelling, and pairs that can go never split a spelling in two."""
    for text in fully_parenthesised((2, 3, 7, 25)):
        spelling = read(text).spelling
        for shorter in without_one_pair(spelling):
            assert read(shorter).spelling != spelling


def without_one_pair(text: str) -> Iterator[str]:
    for start, end in pairs_of(text):
        yield text[:start] + text[start + 1 : end] + text[end + 1 :]


def pairs_of(text: str) -> Iterator[tuple[int, int]]:
    opened: list[int] = []
    for at, character in enumerate(text):
        if character == "(":
            opened.append(at)
        elif character == ")":
            yield opened.pop(), at


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("a+(b+c)", "a+b+c"),
        ("(a+b)+c", "a+b+c"),
        ("a+(b-c)", "a+b-c"),
        ("(a-b)-c", "a-b-c"),
        ("a*(b*c)", "a*b*c"),
        ("(a*b)+c", "a*b+c"),
        ("a-(b*c)", "a-b*c"),
        ("a-(b+c)", "a-(b+c)"),
        ("a-(b-c)", "a-(b-c)"),
        ("(a+b)*c", "(a+b)*c"),
        ("a*((b-c))", "a*(b-c)"),
        ("((a))+( b +c)\n", "a+b+c"),
        ("c+a*b", "c+a*b"),
    ],
)
def test_parentheses_are_dropped_exactly_when_associativity_allows(text: str, spelling: str) -> None:
    assert read(named(text)).spelling == named(spelling)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_random_strings_are_read_exactly_when_pythons_grammar_reads_them_and_to_the_same_value() -> None:
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(20_000):
        text = "".join(rng.choice(list("1234+-*()"), size=rng.integers(1, 8)))
        expression = parse(text)
        assert (expression is not None) == python_reads(text), text
        if expression is not None:
            seen += 1
            assert expression.value == python_value(text)
    assert seen > 300


def python_reads(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    allowed = (ast.Expression, ast.BinOp, ast.Constant, ast.Add, ast.Sub, ast.Mult)
    big = any(isinstance(node, ast.Constant) and node.value >= 10**6 for node in ast.walk(tree))
    return not big and all(isinstance(node, allowed) for node in ast.walk(tree))


def test_deep_but_allowed_nesting_is_read_and_one_more_level_is_not() -> None:
    assert read("(" * 20 + "7" + ")" * 20).spelling == "7"
    assert parse("(" * 21 + "7" + ")" * 21) is None


def with_extra_pairs(spelling: str, pairs: int) -> set[str]:
    """Every way to put so many pairs of parentheses into a text, between tokens, that leaves its spelling alone."""
    found = {spelling}
    for _ in range(pairs):
        wider = (text for one in found for text in with_one_pair(one))
        found = {text for text in wider if (expression := parse(text)) and expression.spelling == spelling}
    return found


def with_one_pair(text: str) -> Iterator[str]:
    for start, end in combinations(range(len(text) + 1), 2):
        yield f"{text[:start]}({text[start:end]}){text[end:]}"


@pytest.mark.parametrize("spelling", ["3+7+8", "3*7*8", "3-7+8", "3*7+8", "3-(7+8)", "(3+7)*8", "3+7-8"])
def test_parenthesised_texts_are_all_with_at_most_one_redundant_pair_per_part(spelling: str) -> None:
    texts = parenthesised(read(spelling).node)
    assert spelling in texts
    assert len(set(texts)) == len(texts)
    assert {read(text).spelling for text in texts} == {spelling}
    needed = spelling.count("(")
    for pairs in (1, 2):
        brute = {text for text in with_extra_pairs(spelling, pairs) if not doubled(text, spelling)}
        assert brute == {text for text in texts if text.count("(") == needed + pairs}


def doubled(text: str, spelling: str) -> bool:
    """Whether some part has more than one pair around it that could go."""
    pairs = set(pairs_of(text))
    for start, end in pairs - {(a + 1, b - 1) for a, b in pairs}:
        shells = next(i for i in range(len(text)) if (start + i, end - i) not in pairs)
        bare = text[:start] + text[start + shells : end + 1 - shells] + text[end + 1 :]
        needed = parse(bare) is None or read(bare).spelling != spelling
        if shells > (2 if needed else 1):
            return True
    return False


def test_parenthesised_texts_count_leaves_groups_and_the_whole() -> None:
    """Three leaves and the whole, each with or without a pair: 16; times the groupings that keep the spelling."""
    counts = {"1+2+3": 48, "1-2+3": 32, "1-2-3": 32, "(1+2)*3": 32, "1-(2+3)": 32}
    assert {text: len(parenthesised(read(text).node)) for text in counts} == counts
