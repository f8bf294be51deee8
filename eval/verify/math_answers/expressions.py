"""What a formula is worth: a small LaTeX reader and an exact evaluator, bounded in time and memory by construction.

Two formulas are the same if they have the same value: exact fractions where possible, 60 digits otherwise; formulas
with variables are compared by their values at fixed points drawn from the variables' names (Schwartz-Zippel: different
rational functions agree at a random point with negligible probability). The result is a key that depends on nothing
but the formula, costs microseconds, and needs no sympy. What the reader does not understand is unreadable; it never
guesses.
"""

import functools
import hashlib
import math
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from mpmath.ctx_mp import MPContext

from offleash.eval.verify.math_answers.formulas import Choice, Node, Parser, TooLarge, Unreadable, variables

MAX_BITS = 1 << 13  # beyond it values are rounded to 60 digits
WORKING_DIGITS, KEY_DIGITS, NOISE_DIGITS = 60, 20, 45
POINTS = 4  # the last one negative
PRIME = 9973  # denominator of the points: values never end in a decimal tie, so rounding is never ambiguous

Number = Any  # Fraction, or a complex number of the thread's mpmath context


@dataclass(frozen=True, slots=True)
class Reading:
    """A formula understood. `key` is equal for equal values; `exact` is the value if it is rational and has no
    variable.

    `value` is the real value without variables, `decimal` whether it was written as a decimal fraction (and so may be
    rounded), `positive` the key where every variable is positive, `elsewhere` the values where some are negative.
    """

    key: str
    symbols: tuple[str, ...]
    exact: Fraction | None
    value: Fraction | None
    decimal: bool
    positive: str
    elsewhere: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1 << 14)
def read(text: str) -> Reading | Literal["unreadable", "too large"]:
    """The reading of a formula, or why there is none."""
    return _read(text, None)


@functools.lru_cache(maxsize=1 << 13)
def possible_readings(text: str) -> tuple[Reading, ...]:
    """Every way to read a formula that can be read in more than one; none if it cannot be read at all."""
    choices = [Choice(below, natural) for below in (False, True) for natural in (False, True)]
    found = [_read(text, choice) for choice in choices]
    readings = tuple(dict.fromkeys(one for one in found if isinstance(one, Reading)))
    return readings if all(isinstance(one, Reading) for one in found) else ()


def _read(text: str, choice: Choice | None) -> Reading | Literal["unreadable", "too large"]:
    try:
        node = Parser(text, choice).whole()
        symbols = tuple(sorted(variables(node)))
        return _constant(node) if not symbols else _function(node, symbols)
    except TooLarge:
        return "too large"
    except (Unreadable, ZeroDivisionError, OverflowError, RecursionError):
        return "unreadable"


@functools.lru_cache(maxsize=1 << 13)
def read_equation(left: str, right: str) -> str | None:
    """A key of the equation left = right that ignores the order of its sides and any constant factor, or None."""
    try:
        node = ("add", Parser(left).whole(), ("neg", Parser(right).whole()))
        symbols = tuple(sorted(variables(node)))
        if not symbols:
            return None
        values = [evaluate(node, point(symbols, index)) for index in range(POINTS)]
        ratios = [show(divide(value, values[0])) for value in values[1:]]
    except (TooLarge, Unreadable, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return f"eq({' '.join(symbols)})#{digest('|'.join(ratios))}"


def _constant(node: Node) -> Reading:
    unsigned = node[1] if node[0] == "neg" else node
    return _of_value(evaluate(node, {}), decimal=unsigned[0] == "num" and unsigned[2])


def _of_value(value: Number, decimal: bool) -> Reading:
    value = snap(value)
    if isinstance(value, Fraction):
        return number(value, decimal)
    key = "≈" + show(value)
    return Reading(key, (), None, None if value.imag else to_fraction(value.real), decimal, key)


def number(value: Fraction, decimal: bool) -> Reading:
    key = fraction_key(value)
    return Reading(key, (), value, value, decimal, key)


def _function(node: Node, symbols: tuple[str, ...]) -> Reading:
    values = [evaluate(node, point(symbols, index)) for index in range(POINTS - 1)]
    shown = [show(value) for value in values]
    elsewhere = tuple(_shown_at(node, one) for one in signed_points(symbols))
    if len({*shown, *elsewhere}) == 1:  # x - x + 2
        return _of_value(values[0], False)
    key = node[1] if node[0] == "var" else f"f({' '.join(symbols)})#{digest('|'.join([*shown, *elsewhere]))}"
    return Reading(key, symbols, None, None, False, digest("|".join(shown)), elsewhere)


def signed_points(symbols: tuple[str, ...]) -> list[dict[str, Fraction]]:
    """Every variable negative, then patterns of signs in which any two variables differ once: xy is not |xy|."""
    negative = point(symbols, POINTS - 1)
    patterns = range((len(symbols) - 1).bit_length())
    return [negative] + [
        {name: -value if place >> bit & 1 else value for place, (name, value) in enumerate(negative.items())}
        for bit in patterns
    ]


def _shown_at(node: Node, values: dict[str, Fraction]) -> str:
    """The value where variables are negative: x^y need not have one."""
    try:
        return show(evaluate(node, values))
    except (Unreadable, ZeroDivisionError):
        return "undefined"


def fraction_key(value: Fraction) -> str:
    """Readable while short; long numbers by their hash (hexadecimal: printing huge decimals is quadratic)."""
    if bits(value) > 256:
        return "#" + digest(f"{value.numerator:x}/{value.denominator:x}") + "0000"
    return str(value)


def bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=1 << 12)
def coordinate(name: str, index: int) -> Fraction:
    """A fixed point between 0.6 and 2.3 for a variable, negative at the last index."""
    raw = int.from_bytes(hashlib.sha256(f"{name}:{index}".encode()).digest()[:8], "big")
    value = Fraction(6000 + raw % 17000, PRIME)
    return -value if index == POINTS - 1 else value


def point(symbols: tuple[str, ...], index: int) -> dict[str, Fraction]:
    return {name: coordinate(name, index) for name in symbols}


class _Contexts(threading.local):
    """mpmath changes a context's precision while it works, so each thread has its own."""

    def __init__(self) -> None:
        self.mp = MPContext()
        self.mp.dps = WORKING_DIGITS


CONTEXTS = _Contexts()


def evaluate(node: Node, values: dict[str, Fraction]) -> Number:
    kind = node[0]
    if kind == "num":
        return node[1]
    if kind == "var":
        return values[node[1]]
    if kind == "const":
        mp = CONTEXTS.mp
        return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[node[1]]
    if kind == "fn":
        return function_value(node[1], evaluate(node[2], values))
    parts = [evaluate(part, values) for part in node[1:]]
    return OPERATIONS[kind](*parts)


def inexact(value: Number) -> Any:
    """To 60 digits."""
    return CONTEXTS.mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def bounded(value: Number) -> Number:
    """Keep exact what is small, round what is not, reject what is far too large."""
    if isinstance(value, Fraction):
        return value if bits(value) <= MAX_BITS else inexact(value)
    if not CONTEXTS.mp.isfinite(value):
        raise ZeroDivisionError
    return value


def rounded(value: Any) -> Any:
    """The result of an inexact operation, without its rounding noise."""
    return bounded(clean(value, abs(value)))


def add(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return bounded(a + b)
    mp = CONTEXTS.mp
    x, y = inexact(a), inexact(b)
    total = x + y
    largest = max(abs(x), abs(y))
    if abs(total) <= largest * mp.mpf(10) ** -NOISE_DIGITS:  # what is left of a cancellation is rounding noise
        return Fraction(0)
    return clean(total, largest)


def clean(value: Any, scale: Any) -> Any:
    """Drop a real or imaginary part that is rounding noise."""
    mp = CONTEXTS.mp
    noise = scale * mp.mpf(10) ** -NOISE_DIGITS
    if isinstance(value, mp.mpc):
        if abs(value.imag) <= noise:
            return value.real
        if abs(value.real) <= noise:
            return mp.mpc(0, value.imag)
    return value


def multiply(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return bounded(a * b)
    if a == 0 or b == 0:
        return Fraction(0)
    return rounded(inexact(a) * inexact(b))


def divide(a: Number, b: Number) -> Number:
    if b == 0:
        raise ZeroDivisionError
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return bounded(a / b)
    return rounded(inexact(a) / inexact(b))


def raise_to(base: Number, exponent: Number) -> Number:
    exponent = snap(exponent)
    if base == 0:
        if isinstance(exponent, Fraction) and exponent > 0:
            return Fraction(0)
        raise ZeroDivisionError
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        return integer_power(base, exponent.numerator)
    mp = CONTEXTS.mp
    if isinstance(base, Fraction) and base < 0 and isinstance(exponent, Fraction) and exponent.denominator % 2:
        raise Unreadable("an odd root of a negative number can be read in two ways")
    if abs(inexact(exponent)) * abs(mp.log(inexact(base))) > 10**5:
        raise TooLarge("power")
    return rounded(mp.power(inexact(base), inexact(exponent)))


def integer_power(base: Number, exponent: int) -> Number:
    if isinstance(base, Fraction):
        if abs(base) == 1:
            return base if exponent % 2 else Fraction(1)
        if bits(base) * abs(exponent) <= MAX_BITS:
            return base**exponent
    mp = CONTEXTS.mp
    if abs(exponent) * abs(mp.log(abs(inexact(base)))) > 10**7 or abs(exponent) > 10**9:
        raise TooLarge("power")
    return rounded(mp.power(inexact(base), exponent))


def take_root(degree: Number, value: Number) -> Number:
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 1 <= degree <= 1000:
        raise Unreadable("a strange root")
    n = degree.numerator
    if isinstance(value, Fraction):
        if value < 0 and n % 2:  # the radical sign means the real root
            return multiply(Fraction(-1), take_root(degree, -value))
        if value >= 0 and (root := exact_root(value, n)) is not None:
            return root
    mp = CONTEXTS.mp
    result = mp.sqrt(inexact(value)) if n == 2 else mp.power(inexact(value), mp.mpf(1) / n)
    return clean(result, abs(result))


def exact_root(value: Fraction, n: int) -> Fraction | None:
    parts = [integer_root(value.numerator, n), integer_root(value.denominator, n)]
    return None if parts[0] is None or parts[1] is None else Fraction(parts[0], parts[1])


def integer_root(value: int, n: int) -> int | None:
    if n == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    if value.bit_length() >= 1000:
        return None
    guess = round(value ** (1 / n))
    return next((r for r in (guess - 1, guess, guess + 1) if r >= 0 and r**n == value), None)


def factorial(value: Number) -> Number:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Unreadable("a factorial of something other than an integer")
    if value > 5000:
        raise TooLarge("factorial")
    return bounded(Fraction(math.factorial(value.numerator)))


def choose(n: Number, k: Number) -> Number:
    if not all(isinstance(v, Fraction) and v.denominator == 1 and v >= 0 for v in (n, k)):
        raise Unreadable("a binomial of something other than integers")
    if n > 10000:
        raise TooLarge("binomial")
    return Fraction(math.comb(n.numerator, k.numerator))


def function_value(name: str, value: Number) -> Number:
    mp = CONTEXTS.mp
    x = inexact(value)
    if abs(x) > (10**5 if name in ("exp", "sinh", "cosh", "tanh") else 10**12):
        raise TooLarge(name)
    if name == "ln":
        if x == 0:
            raise ZeroDivisionError
        return Fraction(0) if value == 1 else clean(mp.log(x), abs(mp.log(x)))
    renamed = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}.get(name, name)
    result = getattr(mp, renamed)(x)
    tiny = mp.mpf(10) ** -NOISE_DIGITS
    if name not in ("exp", "cosh") and abs(result) <= tiny * min(1, abs(x)):  # sin(pi)
        return Fraction(0)
    if name in ("tan", "cot", "sec", "csc") and abs(result) * tiny > 1:  # tan(pi/2)
        raise ZeroDivisionError
    return rounded(result)


OPERATIONS: dict[str, Callable[..., Number]] = {
    "add": add,
    "neg": operator.neg,
    "mul": multiply,
    "div": divide,
    "pow": raise_to,
    "root": take_root,
    "fact": factorial,
    "binom": choose,
    "abs": abs,
}


def snap(value: Number) -> Number:
    """A real value that is a simple fraction to 45 digits is that fraction: 8^{2/3} is 4."""
    mp = CONTEXTS.mp
    if isinstance(value, (Fraction, mp.mpc)):
        return value
    if value == 0:
        return Fraction(0)
    if not -50 < mp.mag(value) < 150:
        return value
    exact = to_fraction(value)
    assert exact is not None  # its magnitude was just checked
    near = exact.limit_denominator(10**6)
    return near if abs(near - exact) * 10**NOISE_DIGITS <= abs(exact) else value


def to_fraction(value: Any) -> Fraction | None:
    """The mpf as the binary fraction it is; None if its exponent is far too large."""
    sign, mantissa, exponent, _ = value._mpf_
    if abs(exponent) > 10**5:
        return None
    number = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -number if sign else number


def show(value: Number) -> str:
    mp = CONTEXTS.mp
    value = inexact(value)
    if isinstance(value, mp.mpc):
        sign = "-" if value.imag < 0 else "+"
        return f"{mp.nstr(value.real, KEY_DIGITS)}{sign}{mp.nstr(abs(value.imag), KEY_DIGITS)}i"
    return str(mp.nstr(value, KEY_DIGITS))
