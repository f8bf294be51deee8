"""Countdown: use every number once, with + - * and parentheses, to reach the target. All answers can be enumerated.

The prompt is `3 7 25 = 46:` and the completion an expression. Its answer class is its solution: expressions equal as
polynomials in the given numbers, such as `3*7+25` and `25+(7*3)`, are one answer. How it is written, up to redundant
parentheses, is its spelling. `arithmetic` defines both and proves the canonical form. A problem of three numbers mostly
has one solution in about five spellings; one of four numbers may have several solutions.
"""

import hashlib
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks.arithmetic import Node, add_up, multiply, parenthesised, parse, solution, spelling

SPLITS = ("train", "validation", "probe")
MAX_NUMBERS = 5  # six numbers have millions of expressions

_PATIENCE = 20_000  # consecutive draws without a new problem before a split counts as exhausted


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


def _split_of(numbers: tuple[int, ...], target: int) -> str:
    """The one split a problem can ever be in, whatever the seed: a hash of its sorted numbers and target."""
    key = ",".join(map(str, numbers)) + f"={target}"
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 10
    return {0: "probe", 1: "validation"}.get(bucket, "train")


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


def _draw(
    split: str, seed: int, size: int, max_number: int, max_target: int, min_solutions: int, max_solutions: int | None
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Distinct problems of a split until no new one is found. A random expression gives the target."""
    rng = np.random.default_rng(seed)
    any_number = (min_solutions, max_solutions) == (1, None)  # every problem drawn has one
    seen: set[tuple[tuple[int, ...], int]] = set()
    misses = 0
    while misses < _PATIENCE:
        misses += 1
        numbers = tuple(int(number) for number in rng.integers(1, max_number + 1, size=size))
        target = _random_value(numbers, rng)
        key = (tuple(sorted(numbers)), target)
        if not 1 <= target <= max_target or key in seen or _split_of(*key) != split:
            continue
        seen.add(key)
        if any_number or min_solutions <= len(_solutions(*key)) <= (max_solutions or math.inf):
            misses = 0
            yield numbers, target


def _at_least(name: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"countdown: {name} must be an integer, got {value!r}")
    if value < low:
        raise ConfigError(f"countdown: {name} must be at least {low}, got {value}")


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
        if split not in SPLITS:
            raise ConfigError(f"countdown has no split {split!r}; choose one of {', '.join(SPLITS)}")
        for name, value, low in (("n", n, 1), ("seed", seed, 0), ("numbers", numbers, 2)):
            _at_least(name, value, low)
        for name, value in (("max_number", max_number), ("max_target", max_target), ("min_solutions", min_solutions)):
            _at_least(name, value, 1)
        if max_solutions is not None:
            _at_least("max_solutions", max_solutions, min_solutions)
        if not isinstance(strict, bool):
            raise ConfigError(f"countdown: strict must be true or false, got {strict!r}")
        if numbers > MAX_NUMBERS:
            raise ConfigError(f"countdown: numbers must be at most {MAX_NUMBERS}, got {numbers}: too many to enumerate")
        self.split, self.strict = split, strict
        draws = _draw(split, seed, numbers, max_number, max_target, min_solutions, max_solutions)
        self.problems: list[Problem] = [_problem(*drawn) for drawn, _ in zip(draws, range(n), strict=False)]
        if len(self.problems) < n:
            solutions = f", {min_solutions} to {max_solutions or 'any number of'} solutions"
            raise ConfigError(
                f"countdown: n={n}, but only {len(self.problems)} problems were found in split {split!r} with "
                f"{numbers} numbers up to {max_number}, targets up to {max_target}{solutions}; lower n or widen them"
            )

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
