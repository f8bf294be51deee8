"""Countdown: use every number once, with + - * and parentheses, to reach the target. All answers can be enumerated.

The prompt is `3 7 25 = 46:` and the completion an expression. Its answer class is its solution: expressions equal as
polynomials in the given numbers, such as `3*7+25` and `25+(7*3)`, are one answer. How it is written, up to redundant
parentheses, is its spelling. `arithmetic` defines both and proves the canonical form. A problem of three numbers mostly
has one solution in about five spellings; one of four numbers may have several solutions.
"""

import math
import operator
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks.arithmetic import Node, add_up, multiply, parenthesised, parse, solution, spelling
from offleash.eval.tasks.generated import check_draw, check_integer, draw, take

MAX_NUMBERS = 5  # six numbers have millions of expressions

_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _combine(sign: str, left: Node, right: Node) -> Node:
    if sign == "*":
        return multiply((left, right))
    return add_up(((1, left), (1 if sign == "+" else -1, right)))


@lru_cache(maxsize=4096)
def _halves(numbers: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Every way to split the numbers into two non-empty groups (left, right); each stays sorted."""
    places = range(len(numbers))
    pairs = {
        (tuple(numbers[i] for i in left), tuple(numbers[i] for i in places if i not in left))
        for size in range(1, len(numbers))
        for left in combinations(places, size)
    }
    return tuple(sorted(pairs))


@lru_cache(maxsize=4096)
def _nodes(numbers: tuple[int, ...]) -> tuple[tuple[Node, int], ...]:
    """Every expression of the sorted numbers, one for each spelling, with its value."""
    if len(numbers) == 1:
        return ((numbers[0], numbers[0]),)
    found: dict[Node, int] = {}
    for left, right in _halves(numbers):
        for (a, value_a), (b, value_b), sign in product(_nodes(left), _nodes(right), _OPERATORS):
            found[_combine(sign, a, b)] = _OPERATORS[sign](value_a, value_b)
    return tuple(found.items())


@lru_cache(maxsize=1 << 16)
def _solutions(numbers: tuple[int, ...], target: int) -> dict[str, tuple[str, ...]]:
    """The spellings of every solution of the sorted numbers, both sorted. Only winners of the last step are built."""
    winners = {
        _combine(sign, a, b)
        for left, right in _halves(numbers)
        for (a, value_a), (b, value_b), sign in product(_nodes(left), _nodes(right), _OPERATORS)
        if _OPERATORS[sign](value_a, value_b) == target
    }
    found: dict[str, list[str]] = {}
    for node in winners:
        found.setdefault(solution(node), []).append(spelling(node))
    return {name: tuple(sorted(found[name])) for name in sorted(found)}


def _problem(numbers: Sequence[int], target: int) -> Problem:
    listed = [int(number) for number in numbers]
    return Problem(
        id="-".join(["countdown", *map(str, listed), str(target)]),
        prompt=f"{' '.join(map(str, listed))} = {target}:",
        gold=next(iter(_solutions(tuple(sorted(listed)), target))),
        meta={"numbers": listed, "target": target},
    )


def _random_value(numbers: Sequence[int], rng: np.random.Generator) -> int:
    """The value of a random expression: two of the numbers are joined by an operator until one is left."""
    hand, operators = list(numbers), list(_OPERATORS.values())
    while len(hand) > 1:
        left = hand.pop(int(rng.integers(len(hand))))
        right = hand.pop(int(rng.integers(len(hand))))
        hand.append(operators[int(rng.integers(len(operators)))](left, right))
    return hand[0]


class Countdown:
    """`n` problems of one split, each with `min_solutions` to `max_solutions` different solutions.

    The splits are disjoint whatever the seed and size, and a bigger `n` only adds problems at the end. `meta` holds
    `numbers` in the order of the prompt, and `target`.

    With `strict`, a completion with spaces or redundant parentheses is not an answer, so that every text that is an
    answer can be listed and the probability of a solution is the sum over its `spellings`, exactly.
    """

    name = "countdown"
    version = "2"

    def __init__(
        self,
        split: str = "probe",
        n: int = 128,
        seed: int = 0,
        numbers: int = 3,
        max_number: int = 25,
        max_target: int = 300,
        min_solutions: int = 1,
        max_solutions: int | None = None,
        strict: bool = False,
    ) -> None:
        check_draw(self.name, split, n, seed)
        for name, value, low, high in (
            ("numbers", numbers, 2, MAX_NUMBERS),
            ("max_number", max_number, 1, None),
            ("max_target", max_target, 1, None),
            ("min_solutions", min_solutions, 1, None),
        ):
            check_integer(self.name, name, value, low, high)
        if max_solutions is not None:
            check_integer(self.name, "max_solutions", max_solutions, min_solutions)
        if not isinstance(strict, bool):
            raise ConfigError(f"countdown: strict must be true or false, got {strict!r}")
        self.split, self.strict = split, strict
        self.version = f"{Countdown.version}-strict" if strict else Countdown.version  # verdicts differ
        any_number = (min_solutions, max_solutions) == (1, None)  # every problem drawn has one

        def propose(rng: np.random.Generator) -> tuple[str, tuple[tuple[int, ...], int]] | None:
            hand = tuple(int(number) for number in rng.integers(1, max_number + 1, size=numbers))
            target = _random_value(hand, rng)
            key = ",".join(map(str, sorted(hand))) + f"={target}"
            return (key, (hand, target)) if 1 <= target <= max_target else None

        def keep(drawn: tuple[tuple[int, ...], int]) -> bool:
            solutions = 1 if any_number else len(_solutions(tuple(sorted(drawn[0])), drawn[1]))
            return min_solutions <= solutions <= (max_solutions or math.inf)

        limits = (
            f"{numbers} numbers up to {max_number}, targets up to {max_target}, "
            f"{min_solutions} to {max_solutions or 'any number of'} solutions"
        )
        self.problems: list[Problem] = [
            _problem(*drawn) for drawn in take(self.name, split, n, draw(split, seed, propose, keep), limits)
        ]

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        """One verdict per pair. A truncated completion has no answer even if it happens to parse."""
        flags = [False] * len(completions) if truncated is None else truncated
        return [_judge(*one, self.strict) for one in zip(problems, completions, flags, strict=True)]

    def correct_answers(self, problem: Problem) -> tuple[str, ...]:
        """All solutions, sorted."""
        return tuple(_solutions_of(problem))

    def spellings(self, problem: Problem, answer: str) -> tuple[str, ...]:
        """Every text of a solution of the problem, sorted.

        Unless the task is strict, texts with at most one redundant pair of parentheses around any part are included:
        then the sum of their probabilities is short of what the model gives to spaces and to further pairs.
        """
        spelled = _solutions_of(problem).get(answer)
        if spelled is None:
            raise ConfigError(f"countdown: {answer[:40]!r} is not a solution of problem {problem.id}")
        if self.strict:
            return spelled
        nodes = [expression.node for expression in map(parse, spelled) if expression]
        return tuple(sorted(text for node in nodes for text in parenthesised(node)))


def _solutions_of(problem: Problem) -> dict[str, tuple[str, ...]]:
    return _solutions(tuple(sorted(problem.meta["numbers"])), problem.meta["target"])


def _judge(problem: Problem, completion: str, truncated: bool, strict: bool) -> Verdict:
    if truncated:
        return Verdict(None, False, "truncated")
    expression = parse(completion)
    if expression is None or (strict and completion != expression.spelling):
        return Verdict(None, False, "no_answer")
    uses_each_once = Counter(expression.numbers) == Counter(problem.meta["numbers"])
    correct = uses_each_once and expression.value == problem.meta["target"]
    return Verdict(expression.solution, correct, "ok", "expression", spelling=expression.spelling)
