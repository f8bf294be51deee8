"""Expressions of numbers with + - * and parentheses: how one is written, and which solution it is.

**Spelling.** The expression as written, operands in the order written, without spaces and without parentheses that
associativity makes redundant: a pair is dropped if and only if what remains reads as the same nested sums and products.

    a+(b+c), (a+b)+c      -> a+b+c       a*(b*c)      -> a*b*c
    a+(b-c)               -> a+b-c       (a*b)+c      -> a*b+c
    a-(b+c), a-(b-c), (a+b)*c            keep their parentheses

**Solution.** Two expressions are one solution if they are equal as polynomials, every number that is written being a
variable of its own, after the variables of equal numbers have been exchanged in some way. So commuting, re-associating,
`a-(b-c) = a-b+c` and `(a-b)*(c-d) = (b-a)*(d-c)` do not make another solution, and neither does swapping the two 4s of
`4+3-4`. What holds only because of the numbers' values does: `2*2+3` and `2+2+3` are two solutions, and so are
`(5+3)*(5-3)` and `5*5-3*3`.

**The canonical form decides it.** Flatten every sum into signed terms, none of them a sum, and every product into
factors, none of them a product. Take the sign out of every factor that is a sum and put it before the product, so that
each sum stands for itself and its negative. *Claim: two expressions in which every variable is written once are the
same polynomial if and only if their flattened trees are the same up to the order of terms and factors and the choice of
those signs.* "If" is arithmetic. "Only if", by induction on the number of variables:

1. Join two variables x and y if d2f/dxdy is not the zero polynomial. The graph depends on the polynomial f alone. No
   variable vanishes: df/dx is, up to sign, the product of all factors that stand beside x on the way to the root, and
   each of them is a non-zero polynomial.
2. In a product, every variable of one factor is joined to every variable of another: d2(gh)/dxdy = dg/dx dh/dy. In a
   sum, variables of different terms are not joined. So the graph of a product is connected, and the complement of the
   graph of a sum is. A term is a variable or a product: the terms of f are the connected components of its graph. A
   factor is a variable or a sum: the factors of f are the connected components of the complement. Hence f tells whether
   its root is a sum (its graph is not connected) or a product, and which variables each child has.
3. No child has a constant term. So the term of a sum on given variables is f with all other variables set to zero: f
   determines the signed terms. The factors of a product share no variable, so f determines each up to a constant, which
   is a sign because all coefficients are +1 or -1; the product of these signs is then determined too.

An exchange of equal numbers maps children to children (2), and within each child independently. So two sums are one
solution if and only if their signed terms are, as multisets. Two products are if and only if their factors are, up to
sign and as multisets, and the signs before them agree, or some factor is the same solution as its own negative (`4-4`),
which makes the sign irrelevant. That is what `_solution` computes from the leaves up. A sum is turned so that, at the
first term of which it does not have equally many with + and with -, those with + are more.

The name of a solution is one of its spellings: short terms and factors before long ones, positive terms before
negative. It can be written without a unary minus from any member: a sum that was turned has a positive term to start
with, by its definition, and where the sign before a whole product is minus, some factor is written as its negative.

There is no unary minus, a number has no leading zero, and only ASCII is read. The parser looks at no more than
`MAX_CHARS` characters, `MAX_DIGITS` digits and `MAX_DEPTH` open parentheses: past those a text is not an expression.
Nothing is multiplied out, so the canonical form takes no longer than sorting the terms at every level.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

MAX_CHARS = 200
MAX_DIGITS = 6
MAX_DEPTH = 20

_WHITESPACE = " \t\r\n"
_TOKEN = re.compile(r"[0-9]+|[-+*()]|[ \t\r\n]+")


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
    """A well-formed expression: how it is written, its solution, its value and its numbers, smallest first."""

    node: Node
    spelling: str
    solution: str
    value: int
    numbers: tuple[int, ...]


def add_up(terms: Sequence[tuple[int, Node]]) -> Node:
    """The signed terms as one node."""
    flat: list[tuple[int, Node]] = []
    for sign, node in terms:
        if sign > 0 and isinstance(node, Sum):
            flat.extend(node.terms)
        else:
            flat.append((sign, node))
    return flat[0][1] if len(flat) == 1 else Sum(tuple(flat))


def multiply(factors: Sequence[Node]) -> Node:
    """The factors as one node."""
    flat = [part for node in factors for part in (node.factors if isinstance(node, Product) else (node,))]
    return flat[0] if len(flat) == 1 else Product(tuple(flat))


def spelling(node: Node) -> str:
    """The expression as written."""
    if isinstance(node, int):
        return str(node)
    if isinstance(node, Product):
        return "*".join(_spelling_inside(factor) for factor in node.factors)
    return "".join(("+" if sign > 0 else "-") + _spelling_inside(term) for sign, term in node.terms)[1:]


def _spelling_inside(node: Node) -> str:
    return f"({spelling(node)})" if isinstance(node, Sum) else spelling(node)


@dataclass(frozen=True, slots=True)
class _Solution:
    """A solution and its negative: `text` writes it, `negative` its negative (None if that needs a unary minus)."""

    is_sum: bool
    text: str
    negative: str | None
    is_own_negative: bool

    @property
    def order(self) -> tuple[int, str]:
        """Short before long: numbers by size, and mostly before products."""
        return len(self.text), self.text


_Signed = tuple[int, _Solution]


def solution(node: Node) -> str:
    """The name of the expression's solution: equal for two expressions if and only if they are one solution."""
    sign, found = _solution(node)
    text = found.text if sign > 0 else found.negative
    assert text is not None  # it was written without a unary minus
    return text


def _solution(node: Node) -> _Signed:
    if isinstance(node, int):
        return 1, _Solution(False, str(node), None, False)
    if isinstance(node, Product):
        return _solution_of_product([_solution(factor) for factor in node.factors])
    return _solution_of_sum(sorted(_signed_terms(node), key=lambda term: term[1].order))


def _signed_terms(node: Sum) -> Iterator[_Signed]:
    for sign, term in node.terms:
        for inner_sign, inner in _signed_terms(term) if isinstance(term, Sum) else [_solution(term)]:
            yield (1 if inner.is_own_negative else sign * inner_sign), inner


def _solution_of_sum(terms: Sequence[_Signed]) -> _Signed:
    """From its terms in order. Of a term that is its own negative, the sign is + and does not count."""
    balance: Counter[str] = Counter()
    for sign, term in terms:
        balance[term.text] += 0 if term.is_own_negative else sign
    first = next((count for count in balance.values() if count), 0)
    turn = -1 if first < 0 else 1
    turned, opposite = (
        [(1 if term.is_own_negative else way * sign, term) for sign, term in terms] for way in (turn, -turn)
    )
    text = _written_sum(turned)
    assert text is not None
    return turn, _Solution(True, text, _written_sum(opposite), first == 0)


def _written_sum(terms: Sequence[_Signed]) -> str | None:
    """Positive terms first. Without any, the first term with a negative that can be written is written as that."""
    positive = [term.text for sign, term in terms if sign > 0]
    negative = [term for sign, term in terms if sign < 0]
    if not positive:
        start = next((term for term in negative if term.negative is not None), None)
        if start is None:
            return None
        positive = [start.negative or ""]
        negative.remove(start)
    return "+".join(positive) + "".join(f"-{term.text}" for term in negative)


def _solution_of_product(signed: Sequence[_Signed]) -> _Signed:
    factors = sorted((factor for _, factor in signed), key=lambda factor: factor.order)
    symmetric = any(factor.is_own_negative for factor in factors)
    sign = 1 if symmetric else math.prod(sign for sign, _ in signed)
    texts = [f"({factor.text})" if factor.is_sum else factor.text for factor in factors]
    at = next((i for i, factor in enumerate(factors) if factor.negative is not None), None)
    negative = None if at is None else "*".join([*texts[:at], f"({factors[at].negative})", *texts[at + 1 :]])
    return sign, _Solution(False, "*".join(texts), negative, symmetric)


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
        return add_up(terms)

    def product(self) -> Node:
        factors = [self.atom()]
        while self.take("*"):
            factors.append(self.atom())
        return multiply(factors)

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
    return Expression(node, spelling(node), solution(node), _value(node), tuple(sorted(_leaves(node))))


def parse(text: str) -> Expression | None:
    """The expression that a text consists of; None if it is not a single expression."""
    stripped = text.strip(_WHITESPACE)
    return _parse_short(stripped) if len(stripped) <= MAX_CHARS else None


def parenthesised(node: Node) -> list[str]:
    """Every text of a spelling with at most one redundant pair of parentheses around any part, the whole included."""
    bare = _texts(node)
    return bare + [f"({text})" for text in bare]


def _texts(node: Node) -> list[str]:
    """Texts of a node without a pair of its own around it."""
    if isinstance(node, int):
        return [str(node)]
    if isinstance(node, Product):
        return _texts_of_run([("*", factor) for factor in node.factors])
    return _texts_of_run([("+" if sign > 0 else "-", term) for sign, term in node.terms])


def _texts_inside(node: Node) -> list[str]:
    """Texts of a node inside a bigger one: with the parentheses it needs, and once with a redundant pair."""
    inner = _texts(node)
    needed = [f"({text})" for text in inner] if isinstance(node, Sum) else inner
    return needed + [f"({text})" for text in needed]


def _texts_of_run(run: list[tuple[str, Node]], whole: bool = True) -> list[str]:
    """Texts of a chain of terms or factors; a shorter stretch may be grouped unless `-` stands before it."""
    if not run:
        return [""]
    texts: list[str] = []
    for length in range(1, len(run) + 1):
        if length == 1:
            blocks = _texts_inside(run[0][1])
        elif run[0][0] == "-" or (whole and length == len(run)):
            break
        else:
            blocks = [f"({text})" for text in _texts_of_run(run[:length])]
        rest = run[length:]
        joint = rest[0][0] if rest else ""
        texts.extend(block + joint + tail for block, tail in product(blocks, _texts_of_run(rest, whole=False)))
    return texts
