"""Answers to reasoning-gym tasks before its scorers see them: the paper's normalization (Appendix B.3), and a filter.

B.3 of arXiv 2507.14843 normalizes seven tasks; the same rules serve base and policy here. The filter rejects what nine
scorers would execute as code: an answer with any character that its task does not need is wrong without being scored.
For n_queens, spiral_matrix, string_insertion and binary_matrix nothing is lost, since the executed form never scores
above 0.5.
"""

import json
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from offleash.eval.verify.math_answers.expressions import Reading, read
from offleash.eval.verify.math_answers.normalize import normalize

MAX_CHARS = 20_000
MAX_VALUE = 10**12  # no coordinate, angle or area of the tasks comes near it


def spelled(dataset: str, answer: str) -> str:
    """The answer in the notation its scorer understands."""
    normalizer = NORMALIZERS.get(dataset) if len(answer) <= MAX_CHARS else None
    return answer.strip() if normalizer is None else normalizer(answer.strip())


FRACTION = re.compile(r"\\[dt]?frac\s*+\{?\s*+(\d+)\s*+\}?\s*+\{?\s*+(\d+)\s*+\}?")


def dice(answer: str) -> str:
    """\\frac{a}{b} is a/b."""
    answer = FRACTION.sub(r"\1/\2", answer)
    return re.sub(r" ?/ ?", "/", answer.strip("$ "))


POWER = re.compile(r"(?<!\d)(\d{1,20}) ?\^ ?(?:\{ ?(\d{1,2}) ?\}|(\d{1,2}))")


def prime_factorization(answer: str) -> str:
    """60 = 2^2 \\times 3 \\times 5 is 2 × 2 × 3 × 5."""
    answer = answer.rsplit("=", 1)[-1].strip("$ ")
    answer = re.sub(r"\\times|\\cdot|\*|·", "×", answer)
    return POWER.sub(lambda match: " × ".join([match[1]] * int(match[2] or match[3])), answer)


def palindrome_generation(answer: str) -> str:
    return re.sub(r"\s+", "", answer)


def advanced_geometry(answer: str) -> str:
    """Formulas become decimals of three places: \\left(\\frac{1}{2}, \\sqrt{2}\\right) is (0.500, 1.414)."""
    text = normalize(answer)
    degrees = "^\\circ" in text or "°" in answer
    text = text.replace("^\\circ", "").strip()
    if text.startswith("(") and text.endswith(")") and "," in text:
        return f"({', '.join(decimal(part) for part in text[1:-1].split(','))})"
    return decimal(text) + ("°" if degrees else "")


def decimal(text: str) -> str:
    """A formula to three decimal places; plain decimals and unreadable text are left as they are."""
    text = text.strip()
    reading = read(text)
    if re.fullmatch(r"-?\d+(?:\.\d+)?", text) or not isinstance(reading, Reading) or reading.value is None:
        return text
    if abs(reading.value) > MAX_VALUE:
        return text
    return f"{float(round(Fraction(reading.value), 3)):.3f}"


SCIENTIFIC = re.compile(
    r"(?<![\d.])(-?\d{1,40}(?:\.\d{1,40})?) {0,2}(?:\\times|\\cdot|×|x|\*) {0,2}10 ?\^ ?\{? ?(-?\d{1,4}) ?\}?"
)


def power_function(answer: str) -> str:
    """1.5 \\times 10^{-3} is 1.5e-3."""
    return SCIENTIFIC.sub(r"\1e\2", answer.strip("$ ")).replace(",", "")


def arc_1d(answer: str) -> str:
    """Digits with single spaces between, without LaTeX arrays around them."""
    answer = re.sub(r"\\(?:begin|end)\{[a-z]*\}(?:\{[^{}]*\})?", " ", answer)
    answer = re.sub(r"\\(?:text|mathrm)\{([^{}]*)\}", r" \1 ", answer)
    answer = re.sub(r"\\quad|\\[,;:! ]|[&$\[\](),]", " ", answer)
    if re.fullmatch(r"\d+", answer.strip()):
        answer = " ".join(answer.strip())
    return re.sub(r"\s+", " ", answer).strip()


def boxnet(answer: str) -> str:
    """A JSON list of {agent: action}; a single plan becomes a list, anything else is dropped."""
    answer = answer.strip()
    if answer.startswith("```"):
        answer = answer[3:].removeprefix("json")
    answer = answer.removesuffix("```").strip()
    try:
        return planned(json.loads(answer))
    except (ValueError, RecursionError):
        return answer


def planned(plan: Any) -> str:
    steps = [plan] if isinstance(plan, dict) else plan
    if not isinstance(steps, list):
        return "[]"  # a bare number is not a plan
    kept = [{agent: action(agent, value) for agent, value in step.items()} for step in steps if isinstance(step, dict)]
    return json.dumps(kept)


def action(agent: str, value: Any) -> Any:
    """A nested list is its first item, a nested dictionary the agent's own entry or its first."""
    if isinstance(value, list):
        return value[0] if value else ""
    if isinstance(value, dict):
        return value.get(agent, next(iter(value.values()), ""))
    return value


# Each is named after its task.
NORMALIZERS: dict[str, Callable[[str], str]] = {
    rule.__name__: rule
    for rule in (dice, prime_factorization, palindrome_generation, advanced_geometry, power_function, arc_1d, boxnet)
}

PLAIN = re.compile(r"[\w\s.,-]*")
ARITHMETIC = re.compile(r"[\d\s+\-*/().]*")
FORMULA = re.compile(r"[A-Za-z\d\s+\-*/^().]*")
NAMES = {"sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp"}
NAMES |= {"log", "ln", "sqrt", "pi", "Abs"}
WORD = re.compile(r"[A-Za-z]+")
EXPONENT = re.compile(r"(?:\*\*|\^)\s*+\(?\s*+-?\s*+(\d+)")
EXECUTED = {
    **dict.fromkeys(("n_queens", "spiral_matrix", "string_insertion", "binary_matrix"), PLAIN),
    "countdown": ARITHMETIC,
    **dict.fromkeys(("simple_integration", "intermediate_integration", "polynomial_multiplication"), FORMULA),
}
NOT_NUMBERS = {"nan", "inf", "infinity"}


def near(answer: str, gold: str) -> bool:
    """The same number to four decimal places, and to one percent."""
    try:
        given, wanted = Fraction(answer.replace(",", "")), Fraction(gold.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return False
    return abs(given - wanted) <= min(Fraction(1, 10**4), abs(wanted) / 100)


def in_one_variable(answer: str, gold: str) -> bool:
    """No letter but the gold's and the constant's: to the scorer, f(x) + g(X) is an integral of both."""
    letters = {word for word in WORD.findall(answer) if word not in NAMES}
    return letters <= {*WORD.findall(gold), "C", "c", "K", "k"}


# What must hold besides full marks, where the scorer is broken: coin_flip gives them for "0" (a prefix of every gold),
# complex_arithmetic for "nan", spell_backward (through rounding) for the right word followed by anything.
GUARDS: dict[str, Callable[[str, str], bool]] = {
    "coin_flip": near,
    "complex_arithmetic": lambda answer, gold: "nan" not in answer.casefold(),
    "spell_backward": lambda answer, gold: answer.casefold() == gold.casefold(),
    **dict.fromkeys(("simple_integration", "intermediate_integration"), in_one_variable),
}


def refused(dataset: str, answer: str) -> str | None:
    """Why an answer is wrong without being scored; None if the scorer may see it."""
    if len(answer) > MAX_CHARS:
        return "too long"
    if answer.casefold().lstrip("+-") in NOT_NUMBERS:
        return "not a number"
    allowed = EXECUTED.get(dataset)
    if allowed is None:
        return None
    if not allowed.fullmatch(answer):
        return "characters that the task does not use"
    return None if allowed is PLAIN else _refused_formula(answer, powers=allowed is FORMULA)


def _refused_formula(answer: str, powers: bool) -> str | None:
    if len(answer) > 1000 or re.search(r"\d{16}", answer):
        return "too long"
    if re.search(r"\.\s*[A-Za-z]", answer) or any(len(w) > 1 and w not in NAMES for w in WORD.findall(answer)):
        return "an unknown function"  # or one of Python's words: "f or g" would be f
    if ("**" in answer or "^" in answer) and not powers:
        return "powers are not among the operations"
    large = any(int(exponent) > 100 for exponent in EXPONENT.findall(answer))
    if large or re.search(r"(?:\*\*|\^)[^+\-*/^]*(?:\*\*|\^)", answer):
        return "powers over the limit"
    return None
