"""Every expression of some numbers, and what it is worth, by Python's own grammar: shares nothing with the product."""

import ast
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations, product

Polynomial = dict[tuple[int, ...], int]  # monomials, as sorted places of variables, to coefficients


def fully_parenthesised(numbers: tuple[int, ...]) -> Iterator[str]:
    """Every full binary tree over every order of the numbers, every inner node in parentheses."""
    for order in sorted(set(permutations(numbers))):
        yield from trees([str(number) for number in order])


def trees(leaves: list[str]) -> Iterator[str]:
    if len(leaves) == 1:
        yield leaves[0]
        return
    for cut in range(1, len(leaves)):
        for left, right, operator in product(trees(leaves[:cut]), trees(leaves[cut:]), "+-*"):
            yield f"({left}{operator}{right})"


def python_value(text: str) -> Fraction:
    """The value, walked with fractions."""
    return _value(ast.parse(text, mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        return Fraction(node.value)
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Mult):
        return left * right
    return left + right if isinstance(node.op, ast.Add) else left - right


def expanded(text: str) -> tuple[Polynomial, list[int]]:
    """Multiplied out, each number written being a variable of its own; and the values of the variables."""
    values: list[int] = []
    polynomial = _expand(ast.parse(text, mode="eval").body, values)
    return {monomial: count for monomial, count in polynomial.items() if count}, values


def _expand(node: ast.expr, values: list[int]) -> Polynomial:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        values.append(node.value)
        return {(len(values) - 1,): 1}
    assert isinstance(node, ast.BinOp)
    left, right = _expand(node.left, values), _expand(node.right, values)
    found: Counter[tuple[int, ...]] = Counter()
    if isinstance(node.op, ast.Mult):
        for (a, m), (b, n) in product(left.items(), right.items()):
            found[tuple(sorted(a + b))] += m * n
        return found
    found.update(left)
    for monomial, count in right.items():
        found[monomial] += count if isinstance(node.op, ast.Add) else -count
    return found


def reference_class(text: str) -> tuple[object, ...]:
    """The polynomial with variables named by value and rank, least over all ways to rank equal values."""
    polynomial, values = expanded(text)
    places = {value: [i for i, one in enumerate(values) if one == value] for value in sorted(set(values))}
    candidates = []
    for orders in product(*(permutations(of_value) for of_value in places.values())):
        name = {place: (values[place], rank) for order in orders for rank, place in enumerate(order)}
        terms = [(sorted(name[i] for i in monomial), count) for monomial, count in polynomial.items()]
        candidates.append(sorted(terms))
    return tuple((tuple(monomial), count) for monomial, count in min(candidates))
