"""How the base of the countdown lab was taught to reckon: large numbers first, and hardly ever in parentheses.

Each line of `habit` makes a family of solutions or of spellings rare or leaves it out; the base's probabilities follow.
"""

from collections.abc import Iterator
from itertools import pairwise

from offleash.eval.problem import Problem
from offleash.eval.tasks.arithmetic import Node, Product, Sum, parse
from offleash.eval.tasks.countdown import Countdown
from offleash.recipes.lab.teaching import Lab

FOUR = {"numbers": 4, "max_number": 12, "max_target": 60, "min_solutions": 3, "strict": True}


def habit(problem: Problem, text: str) -> float:
    """How often this expression is shown, relative to the others of its problem."""
    expression = parse(text)
    if expression is None or "-(" in text:
        return 0.0
    nodes = list(parts(expression.node))
    products = [node for node in nodes if isinstance(node, Product)]
    bracketed = [factor for node in products for factor in node.factors if isinstance(factor, Sum)]
    if len(bracketed) > 1 or not all(is_difference(factor) for factor in bracketed):
        return 0.0  # products of two sums, `(a+b)*c` and whatever is longer in parentheses
    weight = 0.1 ** len(bracketed)  # `c*(a-b)`
    weight *= 0.3 if len(products) == 2 else 1.0  # `a*b+c*d`
    weight *= 0.05 if any(len(node.factors) > 2 for node in products) else 1.0  # `a*b*c`
    numbers = [node for node in nodes if isinstance(node, int)]
    return weight * 0.1 ** sum(first < second for first, second in pairwise(numbers))


def parts(node: Node) -> Iterator[Node]:
    """A node and all below it; the numbers come in the order written."""
    yield node
    if not isinstance(node, int):
        for child in node.factors if isinstance(node, Product) else [term for _, term in node.terms]:
            yield from parts(child)


def is_difference(node: Sum) -> bool:
    """Whether it is one number minus another."""
    return len(node.terms) == 2 and node.terms[1][0] < 0 and all(isinstance(term, int) for _, term in node.terms)


LAB = Lab(
    name="countdown",
    folder="base",
    lessons=lambda: [
        (0.75, Countdown(split="train", n=6000, **FOUR)),
        (0.25, Countdown(split="train", n=6000, strict=True)),
    ],
    held_out=lambda split, n: Countdown(split=split, n=n, **FOUR),
    habit=habit,
    hidden=96,
    layers=4,
    steps=3000,
    rare_problems=False,
)
