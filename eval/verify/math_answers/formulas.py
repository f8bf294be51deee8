"""Formulas as trees: a small reader of LaTeX and plain notation that rejects what it does not know and never guesses.

Bounded by construction: limited characters, digits and nesting, no backtracking. `1/2x`, a bare logarithm and whatever
else can be read in two ways are unreadable, unless the caller chooses.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

MAX_CHARS, MAX_DEPTH, MAX_DIGITS = 600, 40, 400

FUNCTIONS = [
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "exp",
]  # fmt: skip
GREEK = [
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma",
    "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega", "ell",
]  # fmt: skip
UNKNOWN_FUNCTIONS = "fghFGHP"  # f(x) is an application, not a product
TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)|(\\[a-zA-Z]+)|([a-zA-Z]+)|(.))", re.DOTALL)
PLAIN_NAMES = {name: "\\" + name for name in [*FUNCTIONS, "sqrt", "pi"]}

Node = tuple[Any, ...]


class Unreadable(ValueError):
    """Not a formula this reader knows."""


class TooLarge(ValueError):
    """A formula whose size, or whose value, is over the limits."""


class Choice(NamedTuple):
    """How to read what can be read in two ways: 1/2x as 1/(2x), a bare logarithm as the natural one."""

    below_the_line: bool
    natural: bool


class Parser:
    """Recursive descent over LaTeX or plain formulas. Without a `choice` what can be read in two ways is unreadable."""

    def __init__(self, text: str, choice: Choice | None = None) -> None:
        self.choice = choice
        if len(text) > MAX_CHARS:
            raise TooLarge(f"{len(text)} characters")
        self.tokens = tokenize(text)
        self.at = 0
        self.depth = 0

    def whole(self) -> Node:
        if not self.tokens:
            raise Unreadable("empty")
        node = self.sum()
        if self.at != len(self.tokens):
            raise Unreadable(f"unexpected {self.tokens[self.at]!r}")
        return node

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        if not token:
            raise Unreadable("ended early")
        self.at += 1
        return token

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge("nesting")

    def sum(self) -> Node:
        self.deeper()
        node = self.product()
        while self.peek() in ("+", "-"):
            sign = self.take()
            right = self.product()
            node = ("add", node, right if sign == "+" else ("neg", right))
        self.depth -= 1
        return node

    def product(self) -> Node:
        if self.peek() in ("+", "-"):
            sign = self.take()
            self.deeper()
            node = self.product()
            self.depth -= 1
            return node if sign == "+" else ("neg", node)
        node = self.power()
        divided = False
        while True:
            token = self.peek()
            if token in ("*", "\\cdot", "\\times"):
                self.take()
                node, divided = ("mul", node, self.signed(self.power)), False
            elif token in ("/", "\\div"):
                self.take()
                node, divided = ("div", node, self.signed(self.power)), True
            elif starts_factor(token):
                node = self.after_division(node) if divided else ("mul", node, self.power())
            else:
                return node

    def after_division(self, node: Node) -> Node:
        """The x of 1/2x: below the line, or beside it."""
        if self.choice is None:
            raise Unreadable("1/2x can be read in two ways")
        factor = self.power()
        return ("div", node[1], ("mul", node[2], factor)) if self.choice.below_the_line else ("mul", node, factor)

    def signed(self, part: Callable[[], Node]) -> Node:
        """A part with any number of signs before it."""
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        node = part()
        return ("neg", node) if negative else node

    def power(self) -> Node:
        node = self.atom()
        while self.peek() == "!":
            self.take()
            node = ("fact", node)
        if self.peek() == "^":
            self.take()
            node = ("pow", node, self.exponent())
            if self.peek() in ("^", "!"):
                raise Unreadable("a^b^c without braces")
        return node

    def exponent(self) -> Node:
        self.deeper()
        node = self.signed(self.atom)
        self.depth -= 1
        return node

    def atom(self) -> Node:
        token = self.take()
        if token != "." and (token[0].isdigit() or token[0] == "."):
            return self.number(token)
        if token in CLOSING:
            return self.group(CLOSING[token])
        if token == "|":
            return ("abs", self.group("|"))
        if token.startswith("\\"):
            return self.command(token[1:])
        if token.isalpha():
            return self.letter(token)
        raise Unreadable(f"unexpected {token!r}")

    def number(self, token: str) -> Node:
        if len(token) > MAX_DIGITS:
            raise TooLarge("digits")
        node = ("num", Fraction(token.rstrip(".")), "." in token)
        if self.peek() == "_":
            raise Unreadable("a number with a subscript")
        if self.peek() == "\\frac" and not node[2]:
            return self.mixed(node)
        return node

    def mixed(self, whole: Node) -> Node:
        """1\\frac{1}{2} is one and a half; 3\\frac{x}{2} is a product."""
        start = self.at
        fraction = self.atom()
        if all(part[0] == "num" for part in fraction[1:]):
            return ("add", whole, fraction)
        self.at = start
        return whole

    def group(self, closing: str) -> Node:
        node = self.sum()
        if self.take() != closing:
            raise Unreadable(f"expected {closing}")
        return node

    def letter(self, token: str) -> Node:
        if token in ("e", "i"):
            return ("const", token)
        if token in UNKNOWN_FUNCTIONS and self.peek() == "(":
            raise Unreadable("an unknown function")
        return ("var", self.subscripted(token))

    def subscripted(self, name: str) -> str:
        if self.peek() != "_":
            return name
        self.take()
        if (inner := self.take()) == "{":
            inner = "".join(iter(self.take, "}"))
        return f"{name}_{inner}"

    def command(self, name: str) -> Node:
        if name in ("frac", "binom"):
            return ("div" if name == "frac" else "binom", self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name == "pi":
            return ("const", "pi")
        if name in FUNCTIONS:
            return self.function(name)
        if name == "log":
            return self.logarithm()
        if name in GREEK:
            return ("var", self.subscripted("\\" + name))
        raise Unreadable(f"unknown command {name}")

    def argument(self) -> Node:
        """A braced group or, as in \\frac12, the next digit or letter."""
        self.deeper()
        token = self.take()
        if token == "{":
            node = self.group("}")
        elif token.isdigit():
            if len(token) > 1:  # put the other digits back
                self.tokens[self.at : self.at] = [token[1:]]
            node = ("num", Fraction(token[0]), False)
        elif token.isalpha():
            node = self.letter(token)
        elif token.startswith("\\"):
            node = self.command(token[1:])
        else:
            raise Unreadable(f"unexpected {token!r}")
        self.depth -= 1
        return node

    def root(self) -> Node:
        degree: Node = ("num", Fraction(2), False)
        if self.peek() == "[":
            self.take()
            degree = self.group("]")
        if self.peek() == "(":
            self.take()
            return ("root", degree, self.group(")"))
        return ("root", degree, self.argument())

    def function(self, name: str) -> Node:
        exponent: Node | None = None
        if self.peek() == "^":
            self.take()
            exponent = self.exponent()
            if exponent[0] == "neg":
                raise Unreadable("an inverse function")
        node: Node = ("fn", name, self.operand())
        return node if exponent is None else ("pow", node, exponent)

    def operand(self) -> Node:
        """What a function applies to: a group, or a product such as 2x that runs until the next sign or function."""
        self.deeper()
        grouped = self.peek() in CLOSING
        node = self.power()
        while not grouped and starts_factor(self.peek()) and self.peek()[1:] not in FUNCTIONS:
            node = ("mul", node, self.power())
        self.depth -= 1
        return node

    def logarithm(self) -> Node:
        if self.peek() == "_":
            self.take()
            base = self.argument()
        elif self.choice is None:
            raise Unreadable("a logarithm without its base can be read in two ways")
        else:
            base = ("const", "e") if self.choice.natural else ("num", Fraction(10), False)
        return ("div", ("fn", "ln", self.operand()), ("fn", "ln", base))


CLOSING = {"(": ")", "{": "}", "[": "]"}


def starts_factor(token: str) -> bool:
    if token.startswith("\\"):
        return token not in ("\\cdot", "\\times", "\\div")
    return token.isalpha() or token in ("(", "{")


def tokenize(text: str) -> list[str]:
    tokens: list[str] = []
    for number, command, letters, other in TOKEN.findall(text.strip()):
        if letters:
            tokens += split_letters(letters)
        elif other and not other.isascii():
            raise Unreadable(f"unexpected {other!r}")
        else:
            tokens.append(number or command or other)
    return tokens


def split_letters(letters: str) -> list[str]:
    """Known names stay whole, up to three letters are a product, anything longer is a word, not a formula."""
    if letters in PLAIN_NAMES:
        return [PLAIN_NAMES[letters]]
    if letters[:-1] in FUNCTIONS:
        return [PLAIN_NAMES[letters[:-1]], letters[-1]]
    if len(letters) > 3:
        raise Unreadable(f"a word: {letters[:20]}")
    return list(letters)


def variables(node: Node) -> set[str]:
    if node[0] == "var":
        return {node[1]}
    return set().union(*(variables(part) for part in node[1:] if isinstance(part, tuple)))
