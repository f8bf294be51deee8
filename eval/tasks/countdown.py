"""Countdown: use every number once, with + - * and parentheses, to reach the target. All answers can be enumerated.

The prompt is `3 7 25 = 96:` and the completion is the expression. The answer class of an expression is the expression
as written, operands in the order written, without spaces and with no parentheses that associativity makes redundant:
a pair is dropped if and only if what remains reads as the same nested sums and products.

    a+(b+c), (a+b)+c      -> a+b+c       a*(b*c)      -> a*b*c
    a+(b-c)               -> a+b-c       (a*b)+c      -> a*b+c
    a-(b+c), a-(b-c), (a+b)*c            keep their parentheses

So `a*b+c` and `c+a*b` are two answers, and a three-number problem has about five. There is no unary minus, a number has
no leading zero, and only ASCII is read. A completion is parsed by the small recursive parser below, which looks at no
more than `MAX_CHARS` characters, `MAX_DIGITS` digits and `MAX_DEPTH` open parentheses: past those it is not an answer.
"""

import hashlib
import math
import operator
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict

SPLITS = ("train", "validation", "probe")
MAX_CHARS = 200
MAX_DIGITS = 6
MAX_DEPTH = 20
MAX_NUMBERS = 5  # six numbers have millions of expressions

_WHITESPACE = " \t\r\n"
_TOKEN = re.compile(r"[0-9]+|[-+*()]|[ \t\r\n]+")
_PATIENCE = 20_000  # consecutive draws without a new problem before a split counts as exhausted


@dataclass(frozen=True, slots=True)
class Sum:
    """Two or more signed terms. The first sign is +; a term that is itself a Sum has sign - (else it is flattened)."""

    terms: tuple[tuple[int, "Node"], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Two or more factors, none of them a Product."""

    factors: tuple["Node", ...]


Node = int | Sum | Product


@dataclass(frozen=True, slots=True)
class Expression:
    """A well-formed expression: its answer class, its value and the numbers it uses, smallest first."""

    node: Node
    answer: str
    value: int
    numbers: tuple[int, ...]


def _sum(terms: Sequence[tuple[int, Node]]) -> Node:
    flat: list[tuple[int, Node]] = []
    for sign, node in terms:
        if sign > 0 and isinstance(node, Sum):
            flat.extend(node.terms)
        else:
            flat.append((sign, node))
    return flat[0][1] if len(flat) == 1 else Sum(tuple(flat))


def _product(factors: Sequence[Node]) -> Node:
    flat = [part for node in factors for part in (node.factors if isinstance(node, Product) else (node,))]
    return flat[0] if len(flat) == 1 else Product(tuple(flat))


def _render(node: Node) -> str:
    if isinstance(node, int):
        return str(node)
    if isinstance(node, Product):
        return "*".join(_render_inner(factor) for factor in node.factors)
    return "".join(("+" if sign > 0 else "-") + _render_inner(term) for sign, term in node.terms)[1:]


def _render_inner(node: Node) -> str:
    return f"({_render(node)})" if isinstance(node, Sum) else _render(node)


def _value(node: Node) -> int:
    if isinstance(node, int):
        return node
    if isinstance(node, Sum):
        return sum(sign * _value(term) for sign, term in node.terms)
    return math.prod(_value(factor) for factor in node.factors)


def _leaves(node: Node) -> Iterator[int]:
    if isinstance(node, int):
        yield node
        return
    for child in node.factors if isinstance(node, Product) else [term for _, term in node.terms]:
        yield from _leaves(child)


class _Unparsable(Exception):
    pass


class _Parser:
    """Recursive descent over `sum := product (('+'|'-') product)*`, `product := atom ('*' atom)*`."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    def whole(self) -> Node:
        node = self.sum()
        if self.at != len(self.tokens):
            raise _Unparsable
        return node

    def take(self, wanted: str) -> str | None:
        """The next token if it is one of the characters wanted."""
        if self.at < len(self.tokens) and self.tokens[self.at] in wanted:
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    def sum(self) -> Node:
        terms = [(1, self.product())]
        while sign := self.take("+-"):
            terms.append((1 if sign == "+" else -1, self.product()))
        return _sum(terms)

    def product(self) -> Node:
        factors = [self.atom()]
        while self.take("*"):
            factors.append(self.atom())
        return _product(factors)

    def atom(self) -> Node:
        if self.take("("):
            return self.parenthesised()
        text = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if not text.isdecimal() or len(text) > MAX_DIGITS or (text[0] == "0" and text != "0"):
            raise _Unparsable
        self.at += 1
        return int(text)

    def parenthesised(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Unparsable
        node = self.sum()
        if not self.take(")"):
            raise _Unparsable
        self.depth -= 1
        return node


def _tokens(text: str) -> list[str]:
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:  # there are other characters between them
        raise _Unparsable
    return [token for token in tokens if not token.isspace()]


@lru_cache(maxsize=1 << 16)
def _parse_short(text: str) -> Expression | None:
    try:
        node = _Parser(_tokens(text)).whole()
    except _Unparsable:
        return None
    return Expression(node, _render(node), _value(node), tuple(sorted(_leaves(node))))


def parse(text: str) -> Expression | None:
    """The expression that a text consists of; None if it is not a single expression."""
    stripped = text.strip(_WHITESPACE)
    return _parse_short(stripped) if len(stripped) <= MAX_CHARS else None


_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _combine(sign: str, left: Node, right: Node) -> Node:
    if sign == "*":
        return _product((left, right))
    return _sum(((1, left), (1 if sign == "+" else -1, right)))


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
    """Every expression of the sorted numbers, up to its answer class, with its value."""
    if len(numbers) == 1:
        return ((numbers[0], numbers[0]),)
    found: dict[Node, int] = {}
    for left, right in _halves(numbers):
        for (a, value_a), (b, value_b), sign in product(_nodes(left), _nodes(right), _OPERATORS):
            found[_combine(sign, a, b)] = _OPERATORS[sign](value_a, value_b)
    return tuple(found.items())


@lru_cache(maxsize=1 << 16)
def _correct(numbers: tuple[int, ...], target: int) -> tuple[str, ...]:
    """Every answer class of the sorted numbers with that value. Only the winners of the last step are built."""
    found: set[str] = set()
    for left, right in _halves(numbers):
        for (a, value_a), (b, value_b), sign in product(_nodes(left), _nodes(right), _OPERATORS):
            if _OPERATORS[sign](value_a, value_b) == target:
                found.add(_render(_combine(sign, a, b)))
    return tuple(sorted(found))


def _spell(node: Node) -> list[str]:
    """Spellings of a node without a pair of its own around it."""
    if isinstance(node, int):
        return [str(node)]
    if isinstance(node, Product):
        return _spell_run([("*", factor) for factor in node.factors])
    return _spell_run([("+" if sign > 0 else "-", term) for sign, term in node.terms])


def _spell_item(node: Node) -> list[str]:
    """Spellings of a node inside a bigger one: with the parentheses it needs, and once with a redundant pair."""
    inner = _spell(node)
    needed = [f"({text})" for text in inner] if isinstance(node, Sum) else inner
    return needed + [f"({text})" for text in needed]


def _spell_run(run: list[tuple[str, Node]], whole: bool = True) -> list[str]:
    """Spellings of a chain of terms or factors; a shorter stretch may be grouped unless `-` stands before it."""
    if not run:
        return [""]
    spelled: list[str] = []
    for length in range(1, len(run) + 1):
        if length == 1:
            blocks = _spell_item(run[0][1])
        elif run[0][0] == "-" or (whole and length == len(run)):
            break
        else:
            blocks = [f"({text})" for text in _spell_run(run[:length])]
        rest = run[length:]
        joint = rest[0][0] if rest else ""
        spelled.extend(block + joint + tail for block, tail in product(blocks, _spell_run(rest, whole=False)))
    return spelled


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
        gold=_correct(tuple(sorted(listed)), target)[0],
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


def _draw(split: str, seed: int, size: int, max_number: int, max_target: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Distinct problems of a split until no new one is found. A random expression gives the target."""
    rng = np.random.default_rng(seed)
    seen: set[tuple[tuple[int, ...], int]] = set()
    misses = 0
    while misses < _PATIENCE:
        numbers = tuple(int(number) for number in rng.integers(1, max_number + 1, size=size))
        target = _random_value(numbers, rng)
        key = (tuple(sorted(numbers)), target)
        if not 1 <= target <= max_target or key in seen or _split_of(*key) != split:
            misses += 1
            continue
        misses = 0
        seen.add(key)
        yield numbers, target


def _at_least(name: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"countdown: {name} must be an integer, got {value!r}")
    if value < low:
        raise ConfigError(f"countdown: {name} must be at least {low}, got {value}")


class Countdown:
    """`n` problems of one split, each with at least one correct answer.

    The splits are disjoint whatever the seed and size, and a bigger `n` only adds problems at the end. `meta` holds
    `numbers` in the order of the prompt, and `target`.
    """

    name = "countdown"
    version = "1"

    def __init__(
        self,
        split: str = "probe",
        n: int = 128,
        seed: int = 0,
        numbers: int = 3,
        max_number: int = 25,
        max_target: int = 300,
    ) -> None:
        if split not in SPLITS:
            raise ConfigError(f"countdown has no split {split!r}; choose one of {', '.join(SPLITS)}")
        for name, value, low in (("n", n, 1), ("seed", seed, 0), ("numbers", numbers, 2)):
            _at_least(name, value, low)
        for name, value in (("max_number", max_number), ("max_target", max_target)):
            _at_least(name, value, 1)
        if numbers > MAX_NUMBERS:
            raise ConfigError(f"countdown: numbers must be at most {MAX_NUMBERS}, got {numbers}: too many to enumerate")
        self.split = split
        draws = _draw(split, seed, numbers, max_number, max_target)
        self.problems: list[Problem] = [_problem(*drawn) for drawn, _ in zip(draws, range(n), strict=False)]
        if len(self.problems) < n:
            raise ConfigError(
                f"countdown: n={n}, but only {len(self.problems)} problems were found in split {split!r} "
                f"with {numbers} numbers up to {max_number} and targets up to {max_target}; lower n or widen them"
            )

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        """One verdict per pair. A truncated completion has no answer even if it happens to parse."""
        flags = [False] * len(completions) if truncated is None else truncated
        return [_judge(*one) for one in zip(problems, completions, flags, strict=True)]

    def correct_answers(self, problem: Problem) -> tuple[str, ...]:
        """All correct answer classes, sorted."""
        return _correct(tuple(sorted(problem.meta["numbers"])), problem.meta["target"])

    def spellings(self, answer: str) -> tuple[str, ...]:
        """The texts of an answer class, sorted: at most one redundant pair of parentheses around any part, no spaces.

        The probability of a class under a model is the sum over its spellings, short only of what the model gives
        to spaces and to doubly redundant parentheses.
        """
        expression = parse(answer)
        if expression is None:
            raise ConfigError(f"countdown: {answer[:40]!r} is not an expression, so it has no spellings")
        bare = _spell(expression.node)
        return tuple(sorted(bare + [f"({text})" for text in bare]))


def _judge(problem: Problem, completion: str, truncated: bool) -> Verdict:
    if truncated:
        return Verdict(None, False, "truncated")
    expression = parse(completion)
    if expression is None:
        return Verdict(None, False, "no_answer")
    uses_each_once = Counter(expression.numbers) == Counter(problem.meta["numbers"])
    correct = uses_each_once and expression.value == problem.meta["target"]
    return Verdict(expression.answer, correct, "ok", "expression")
