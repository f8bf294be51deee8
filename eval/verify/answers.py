"""What an answer says, apart from how it is written: its class, and whether it agrees with the gold answer.

An answer is taken apart (lists, tuples, sets, intervals, inequalities, matrices, equations, values with units) and its
leaves are compared by value (`expressions`). The class is a text that depends on the answer and the gold only: equal
for 0.5, 1/2 and \\frac12, the same whatever else was seen, and a fixed point: the class of a class is itself.
`compare` answers True or False where it can tell, None where a computer algebra system must decide.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from offleash.eval.verify.expressions import Reading, fraction_key, read, read_equation
from offleash.eval.verify.normalise import MAX_ANSWER_CHARS, UNITS, normalise, split_unit, unwrap_text

__all__ = ["Answer", "answer_class", "class_given_gold", "compare", "is_clear", "understand"]

Kind = Literal[
    "leaf", "words", "bare", "set", "tuple", "closed", "left", "right", "union", "matrix", "equation", "relation"
]
BRACKETS = {("(", ")"): "tuple", ("[", "]"): "closed", ("[", ")"): "left", ("(", "]"): "right"}
SHOWN = {"tuple": "({})", "closed": "[{}]", "left": "[{})", "right": "({}]", "set": "{{{}}}", "bare": "{{{}}}"}
CANONICAL = re.compile(r"≈\S+|(?:f|eq)\([^()]*\)#[0-9a-f]{12}|#[0-9a-f]{16}")
ROUNDED_PLACES, RELATIVE = 6, Fraction(2, 10**5)
MAX_ITEMS, MAX_NESTING = 100, 6


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer taken apart. `text` is the normalised spelling; `name` the left side of `x = 5`."""

    kind: Kind
    text: str
    items: tuple["Answer", ...] = ()
    unit: str = ""
    base: str = ""
    percent: bool = False
    name: str = ""
    reading: Reading | None = None
    too_large: bool = False


# Taking apart


@functools.lru_cache(maxsize=1 << 15)
def understand(raw: str) -> Answer:
    if len(raw) > MAX_ANSWER_CHARS:
        return Answer("leaf", "#" + hashlib.sha256(raw.encode(errors="replace")).hexdigest()[:16], too_large=True)
    return parse(normalise(raw), 0)


def parse(text: str, depth: int) -> Answer:
    if depth > MAX_NESTING:
        return Answer("leaf", text, too_large=True)
    text = text.strip()
    for reader in (_canonical, _words, _union, _membership, _relation, _sequence, _bracketed, _matrix, _equation):
        if (found := reader(text, depth)) is not None:
            return found
    return _leaf(text)


def _canonical(text: str, depth: int) -> Answer | None:
    return Answer("leaf", text) if CANONICAL.fullmatch(text) else None


def _words(text: str, depth: int) -> Answer | None:
    """`\\text{east}`, `Evelyn`, `ellipse`: no formula. One letter, or two, may be variables."""
    plain = unwrap_text(text)
    marked = plain != text and "\\text" in text
    inner = re.sub(r"[\s'’-]", "", plain)
    if not inner.isalpha() or not inner.isascii() or len(inner) < 2 or plain in ("pi", "ln"):
        return None
    if len(inner) == 2 and not marked and inner.casefold() not in TWO_LETTER_WORDS:
        return None
    if re.search(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])", plain) and all(
        len(w) <= 2 for w in plain.split() if w not in ("and", "or")
    ):
        return None  # "a and b" is a list
    return Answer("words", re.sub(r"\s+", " ", plain).casefold())


TWO_LETTER_WORDS = {
    "no",
    "on",
    "up",
    "so",
    "it",
    "is",
    "in",
    "at",
    "am",
    "pm",
    "or",
    "if",
    "to",
    "us",
    "we",
    "he",
    "me",
}


def _union(text: str, depth: int) -> Answer | None:
    parts = split_top(text, ("\\cup",))
    if len(parts) == 1:
        parts = split_top(text, ("\\text{or}", "\\text{ or }", " or ", "\\lor", "\\vee"))
        if len(parts) > 1 and not any(RELATION.search(part) for part in parts):
            return None  # "2 or 3" is a list
    if len(parts) == 1:
        return None
    return Answer("union", text, tuple(parse(part, depth + 1) for part in parts))


def _membership(text: str, depth: int) -> Answer | None:
    """`x \\in [1, 2]` is the interval."""
    match = re.match(r"(?:[A-Za-z]|\\(?:theta|alpha|lambda))\s*\\in(?![a-zA-Z])\s*", text)
    return parse(text[match.end() :], depth + 1) if match else None


RELATION = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|<=|>=|<|>")
SYMBOL = re.compile(r"[A-Za-z](?:_\w|_\{\w+\})?|\\(?:theta|alpha|beta|lambda|mu)")


def _relation(text: str, depth: int) -> Answer | None:
    """`1 \\le x < 2` is the interval [1, 2); an inequality of another form stays a relation."""
    signs = [{"\\le": "<=", "\\ge": ">="}.get(sign, sign) for sign in RELATION.findall(text)]
    if not signs or "," in text:
        return None
    sides = [side.strip() for side in RELATION.split(text)]
    if all(sides) and len(signs) <= 2 and (interval := _interval(sides, signs, depth)) is not None:
        return interval
    return Answer("relation", text)


def _interval(sides: list[str], signs: list[str], depth: int) -> Answer | None:
    if all(sign[0] == ">" for sign in signs):
        sides, signs = sides[::-1], [sign.replace(">", "<") for sign in signs[::-1]]
    if any(sign[0] == ">" for sign in signs):
        return None
    if len(signs) == 1:
        if SYMBOL.fullmatch(sides[0]) and not SYMBOL.fullmatch(sides[1]):
            sides, signs = ["-\\infty", *sides], ["<", *signs]
        elif SYMBOL.fullmatch(sides[1]) and not SYMBOL.fullmatch(sides[0]):
            sides, signs = [*sides, "\\infty"], [*signs, "<"]
        else:
            return None
    if not SYMBOL.fullmatch(sides[1]):
        return None
    kind = BRACKETS["[" if signs[0] == "<=" else "(", "]" if signs[1] == "<=" else ")"]
    return _make(kind, (parse(sides[0], depth + 1), parse(sides[2], depth + 1)))


def _make(kind: str, items: tuple[Answer, ...], text: str = "") -> Answer:
    return Answer(kind, text or "|".join(item.text for item in items), items)  # type: ignore[arg-type]


def _sequence(text: str, depth: int) -> Answer | None:
    """`1, -2` or `1 and -2`: a list without brackets, whose order says nothing."""
    parts = split_top(text, (",", ";", "\\text{and}", "\\text{ and }", " and ", "\\text{or}", "\\text{ or }", " or "))
    parts = [part for part in parts if part]
    if len(parts) < 2 or len(parts) > MAX_ITEMS:
        return None
    name, first = _split_name(parts[0])
    if name and not any("=" in part for part in parts[1:]):  # n = 2, 3, 4
        parts = [first, *parts[1:]]
    else:
        name = ""
    return Answer("bare", text, tuple(item for part in parts for item in _flat(parse(part, depth + 1))), name=name)


def _flat(item: Answer) -> tuple[Answer, ...]:
    """`1 \\pm 2, 5` is one list of three."""
    return item.items if item.kind == "bare" else (item,)


def _bracketed(text: str, depth: int) -> Answer | None:
    """(a, b), [a, b), \\{a, b\\}, \\langle a, b \\rangle; brackets around one thing say nothing."""
    opening, closing, inner = _outer_brackets(text)
    if not opening:
        return None
    parts = [part for part in split_top(inner, (",", ";")) if part]
    if opening == "{" and len(parts) <= 1:
        return parse(inner, depth + 1) if parts else Answer("leaf", "\\emptyset")
    if len(parts) <= 1:
        one_pair = opening in "([" and BRACKETS.get((opening, closing)) in ("tuple", "closed")
        return parse(inner, depth + 1) if one_pair and parts else None
    if len(parts) > MAX_ITEMS:
        return None
    items = tuple(parse(part, depth + 1) for part in parts)
    if opening == "{":
        return _make("set", tuple(item for one in items for item in _flat(one)), text)
    return _make("tuple" if opening == "<" else BRACKETS[opening, closing], items, text)


def _outer_brackets(text: str) -> tuple[str, str, str]:
    """The opening and closing bracket that enclose the whole text and what is inside; ("", "", "") if none do."""
    for left, right, name in (("\\{", "\\}", "{"), ("\\langle", "\\rangle", "<"), ("{", "}", "{")):
        if text.startswith(left) and text.endswith(right) and closes_at_end(text, left):
            return name, right, text[len(left) : len(text) - len(right)]
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and closes_at_end(text, text[0]):
        return text[0], text[-1], text[1:-1]
    return "", "", ""


OPENING = re.compile(r"\\\{|\\langle(?![a-zA-Z])|[({\[]")
ANY_BRACKET = re.compile(r"\\[{}]|\\[lr]angle(?![a-zA-Z])|[()\[\]{}]")


def closes_at_end(text: str, left: str) -> bool:
    """Whether the bracket that opens the text is closed by its very end."""
    depth = 0
    for match in ANY_BRACKET.finditer(text):
        depth += 1 if OPENING.match(match.group()) else -1
        if depth <= 0:
            return depth == 0 and match.end() == len(text)
    return False


def split_top(text: str, separators: Sequence[str]) -> list[str]:
    """Split at separators outside every bracket."""
    if not any(separator in text for separator in separators):
        return [text]
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        separator = next((s for s in separators if text.startswith(s, at)), None) if depth == 0 else None
        if separator is not None:
            parts.append(text[start:at].strip())
            at += len(separator)
            start = at
            continue
        match = ANY_BRACKET.match(text, at)
        if match is not None:
            depth += 1 if OPENING.match(match.group()) else -1
            at = match.end()
        else:
            at += 1
    parts.append(text[start:].strip())
    return parts


MATRIX = re.compile(r"\\begin\{([pbBvV]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", re.DOTALL)


def _matrix(text: str, depth: int) -> Answer | None:
    match = MATRIX.fullmatch(text)
    if match is None or "\\begin" in match[2]:
        return None
    rows = [row for row in (part.strip() for part in match[2].split("\\\\")) if row]
    if not rows or len(rows) > MAX_ITEMS:
        return None
    cells = [tuple(parse(cell, depth + 2) for cell in row.split("&")) for row in rows]
    return _make("matrix", tuple(_make("closed", row) for row in cells), text)


NAME = re.compile(
    r"(?:\([A-Za-z](?:,\s*[A-Za-z])+\)|[A-Za-z](?:_\w|_\{\w+\})?(?:\([^()=]{1,20}\))?|\\(?:theta|alpha|beta|lambda|mu)|\\text\s*\{[^{}]*\}|[A-Z]{2,3})'?"
)


def _split_name(text: str) -> tuple[str, str]:
    """`x = 5` is the name x and the value 5; ("", text) if the left side is no name."""
    left, sign, right = text.partition("=")
    if sign and "=" not in right and NAME.fullmatch(left.strip()) and right.strip():
        return re.sub(r"\s", "", left), right.strip()
    return "", text


def _equation(text: str, depth: int) -> Answer | None:
    """`x = 5` names a value; `3x - y = 4` is an equation; a chain a = b = c ends in its value."""
    parts = [part.strip() for part in split_top(text, ("=",))]
    if len(parts) < 2 or not all(parts):
        return None
    name = re.sub(r"\s", "", parts[0]) if NAME.fullmatch(parts[0]) else ""
    if name or len(parts) > 2 or _is_sum(parts):
        value = parse(parts[-1], depth + 1)
        return replace(value, name=name)
    if SYMBOL.fullmatch(parts[1]) and not read_symbols(parts[0]):  # 5 = x
        return replace(parse(parts[0], depth + 1), name=parts[1])
    return Answer("equation", text, (Answer("leaf", parts[0]), Answer("leaf", parts[1])))


def _is_sum(parts: list[str]) -> bool:
    """1 + 2 = 3: both sides without variables."""
    readings = [read(part) for part in parts]
    return all(isinstance(reading, Reading) and not reading.symbols for reading in readings)


def read_symbols(text: str) -> tuple[str, ...]:
    reading = read(text)
    return reading.symbols if isinstance(reading, Reading) else ("?",)


INFINITY = re.compile(r"([+-]?)\s*(?:\\infty|infinity|inf|oo)")
BASE = re.compile(r"([0-9A-Za-z]+)\s*_\s*\{?\s*(?:\\text\s*\{\s*)?(\d+|[a-z]+)\s*\}?\}?")
SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*[eE]\s*([+-]?\d{1,3})")
MIXED = re.compile(r"([+-]?)(\d{1,15})\s+(\d{1,15})\s*/\s*(\d{1,15})")
REPEATING = re.compile(r"([+-]?)(\d{0,15})\.(\d{0,15})\\overline\s*\{(\d{1,15})\}")
PLAIN = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})")
PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])|\+/-")


def _leaf(text: str) -> Answer:
    if PLUS_MINUS.search(text):
        return _plus_minus(text)
    if match := INFINITY.fullmatch(text):
        return Answer("leaf", ("-" if match[1] == "-" else "") + "\\infty")
    if (match := BASE.fullmatch(text)) and match[1][0].isdigit():
        return Answer(
            "leaf", match[1], base=match[2], reading=_number(Fraction(match[1]), False) if match[1].isdigit() else None
        )
    value, unit = split_unit(text)
    percent = value.endswith("%") or unit == "percent"
    value = value.rstrip("% ") if percent else value
    value = unwrap_text(value) if "\\text" in value else value
    found = _quick(value) or read(value)
    if isinstance(found, Reading):
        return Answer("leaf", value, unit="" if unit == "percent" else unit, percent=percent, reading=found)
    return Answer("leaf", text, too_large=found == "too large")


def _quick(text: str) -> Reading | None:
    """Numbers in the spellings that are no LaTeX formula, and the common case without the reader."""
    if PLAIN.fullmatch(text):
        return _number(Fraction(text.rstrip(".")), "." in text)
    if match := SCIENTIFIC.fullmatch(text):
        return _number(Fraction(match[1].rstrip(".")) * Fraction(10) ** int(match[2]), True)
    if (match := MIXED.fullmatch(text)) and int(match[4]):
        value = int(match[2]) + Fraction(int(match[3]), int(match[4]))
        return _number(-value if match[1] == "-" else value, False)
    if match := REPEATING.fullmatch(text):
        fixed = Fraction(int(match[2] + match[3] or "0"), 10 ** len(match[3]))
        value = fixed + Fraction(int(match[4]), (10 ** len(match[4]) - 1) * 10 ** len(match[3]))
        return _number(-value if match[1] == "-" else value, False)
    return None


def _number(value: Fraction, decimal: bool) -> Reading:
    key = fraction_key(value)
    return Reading(key, (), value, value, decimal, key)


def _plus_minus(text: str) -> Answer:
    """`1 \\pm \\sqrt{2}` is two values."""
    parts = PLUS_MINUS.split(text)
    if len(parts) != 2:
        return Answer("leaf", text)
    both = (_leaf(f"{parts[0]}+{parts[1]}"), _leaf(f"{parts[0]}-{parts[1]}"))
    return Answer("bare", text, both)


# Classes


@functools.lru_cache(maxsize=1 << 15)
def answer_class(raw: str) -> str:
    """The class of an answer on its own: units, names and brackets around one thing left out."""
    return show(understand(raw))


def show(answer: Answer) -> str:
    if answer.kind == "leaf":
        return _leaf_class(answer)
    if answer.kind in ("words", "relation"):
        return answer.text
    if answer.kind == "equation":
        return equation_key(answer) or answer.text
    if answer.kind == "matrix":
        rows = [" & ".join(show(cell) for cell in row.items) for row in answer.items]
        return "\\begin{matrix}" + " \\\\ ".join(rows) + "\\end{matrix}"
    shown = [show(item) for item in answer.items]
    if answer.kind == "union":
        return " ∪ ".join(sorted(set(shown)))
    if answer.kind in ("set", "bare"):
        shown = sorted(set(shown))
        if len(shown) == 1:
            return shown[0]
    return SHOWN[answer.kind].format(", ".join(shown))


def _leaf_class(answer: Answer) -> str:
    if answer.reading is None:
        return answer.text
    if answer.percent and answer.reading.exact is not None:
        return _number(answer.reading.exact / 100, False).key
    return answer.reading.key


def equation_key(answer: Answer) -> str | None:
    """Of an equation, or of a named value read as one."""
    if answer.kind == "equation":
        return read_equation(answer.items[0].text, answer.items[1].text)
    if answer.kind == "leaf" and answer.name and answer.reading is not None:
        return read_equation(answer.name, answer.text)
    return None


def class_given_gold(gold: str, answer: str, correct: bool) -> str:
    """The class of an answer to a problem: the gold's if it is correct, never the gold's if it is not."""
    golden = answer_class(gold)
    if correct:
        return golden
    if _choice(gold) is not None and (letter := _choice(answer, explained=True)) is not None:
        return letter
    own = answer_class(answer)
    if own != golden:
        return own
    read_answer = understand(answer)  # wrong for something the class leaves out: its unit, its base, its name
    if read_answer.unit:
        return f"{own} \\text{{{read_answer.unit}}}"
    if read_answer.base:
        return f"{own}_{{{read_answer.base}}}"
    if read_answer.name:
        return f"{read_answer.name} = {own}"
    return f"{own}?"


# Agreement


def is_clear(answer: Answer) -> bool:
    """Whether every part was understood, so that no computer algebra is needed to compare it."""
    if answer.items and answer.kind != "equation":
        return all(is_clear(item) for item in answer.items)
    if answer.kind == "equation":
        return equation_key(answer) is not None
    return answer.kind == "words" or answer.reading is not None or bool(INFINITY.fullmatch(answer.text))


@functools.lru_cache(maxsize=1 << 16)
def compare(gold: str, answer: str) -> bool | None:
    """Does the answer say what the gold says? None if only a computer algebra system can tell."""
    if (letter := _choice(gold)) is not None:
        chosen = _choice(answer, explained=True)
        if chosen is not None:
            return chosen == letter
    return agree(understand(gold), understand(answer))


CHOICE = re.compile(r"\(?([A-J])\)?")
EXPLAINED_CHOICE = re.compile(r"\(?([A-Ja-j])\)?(?:[.:)].*)?|\(([A-Ja-j])\).*", re.DOTALL)


def _choice(raw: str, explained: bool = False) -> str | None:
    """The letter of a multiple-choice answer: `C`, `(C)`, and in a reply also `C. 12` or `(C) 12`."""
    if len(raw) > MAX_ANSWER_CHARS:
        return None
    text = unwrap_text(normalise(raw))
    match = (EXPLAINED_CHOICE if explained else CHOICE).fullmatch(text)
    return (match[1] or match[2]).upper() if match and explained else match[1] if match else None


def agree(gold: Answer, answer: Answer) -> bool | None:
    if gold.text == answer.text and gold.kind == answer.kind and gold.items == answer.items:
        return _details_agree(gold, answer)
    if gold.too_large or answer.too_large:
        return False  # another spelling of something over the limits: a known limit, never a guess
    if gold.kind == "equation" or answer.kind == "equation" or (gold.name and answer.name):
        return _equations_agree(gold, answer)
    if gold.kind == "leaf" and answer.kind == "leaf":
        return _leaves_agree(gold, answer)
    if "words" in (gold.kind, answer.kind):
        return gold.kind == answer.kind and gold.text == answer.text
    if gold.items and answer.items:
        return _structures_agree(gold, answer)
    if gold.items or answer.items:  # one value against several
        return False if is_clear(gold) and is_clear(answer) else None
    return None


def _details_agree(gold: Answer, answer: Answer) -> bool:
    if _names_conflict(gold.name, answer.name):
        return False
    if gold.base and answer.base and gold.base != answer.base:
        return False
    return not _units_conflict(gold.unit, answer.unit) and _percent_agrees(gold, answer)


KNOWN_UNITS = {name for unit in UNITS.values() for name in (unit, f"{unit}^2", f"{unit}^3")}


def _units_conflict(gold: str, answer: str) -> bool:
    """Two known units that differ; a missing unit, or a word that is no unit, conflicts with nothing."""
    return gold != answer and gold in KNOWN_UNITS and answer in KNOWN_UNITS


def _percent_agrees(gold: Answer, answer: Answer) -> bool:
    """The same digits, one with a percent sign: fine unless the gold is a plain number below 1."""
    if gold.percent == answer.percent or gold.percent:
        return True
    return gold.reading is None or gold.reading.exact is None or abs(gold.reading.exact) >= 1


def _leaves_agree(gold: Answer, answer: Answer) -> bool | None:
    if gold.reading is None or answer.reading is None:
        return False if is_clear(gold) and is_clear(answer) else None
    if not _details_agree(gold, answer) and gold.reading.key == answer.reading.key:
        return False
    if gold.percent != answer.percent:
        return _scaled_agree(gold, answer)
    if _units_conflict(gold.unit, answer.unit):
        return False
    return _values_agree(gold.reading, answer.reading)


def _scaled_agree(gold: Answer, answer: Answer) -> bool | None:
    """50% against 0.5, or against 50 where the sign was merely left out."""
    assert gold.reading is not None
    assert answer.reading is not None
    if gold.reading.exact is None or answer.reading.exact is None:
        return None
    wanted = gold.reading.exact / 100 if gold.percent else gold.reading.exact
    given = answer.reading.exact / 100 if answer.percent else answer.reading.exact
    if wanted == given:
        return True
    return gold.reading.exact == answer.reading.exact and _percent_agrees(gold, answer)


def _values_agree(gold: Reading, answer: Reading) -> bool | None:
    if gold.key == answer.key:
        return True
    if gold.symbols or answer.symbols:
        same_where_positive = gold.symbols == answer.symbols and gold.positive == answer.positive
        return None if same_where_positive else False
    if gold.value is not None and answer.value is not None:
        return (gold.decimal or answer.decimal) and rounds_alike(gold.value, answer.value)
    return False


def rounds_alike(gold: Fraction, answer: Fraction) -> bool:
    """math-verify's rule for decimals (equal after rounding to six places), and five digits must be right as well."""
    if gold.denominator == 1:
        return gold == answer
    close = round(gold, ROUNDED_PLACES) == round(answer, ROUNDED_PLACES)
    return close and abs(gold - answer) <= RELATIVE * abs(gold)


def _equations_agree(gold: Answer, answer: Answer) -> bool | None:
    if gold.name and answer.name and not _names_conflict(gold.name, answer.name):
        return agree(replace(gold, name=""), replace(answer, name=""))
    keys = equation_key(gold), equation_key(answer)
    if keys[0] is not None and keys[1] is not None:
        return keys[0] == keys[1]
    if gold.name and answer.name:
        return False
    return False if is_clear(gold) and is_clear(answer) else None  # an equation against a value


def _names_conflict(gold: str, answer: str) -> bool:
    """x = 3 is not y = 3, but f(x) = 3 or \\text{area} = 3 may well be."""
    return gold != answer and bool(SYMBOL.fullmatch(gold)) and bool(SYMBOL.fullmatch(answer))


def _structures_agree(gold: Answer, answer: Answer) -> bool | None:
    kinds = {gold.kind, answer.kind}
    if kinds <= {"set", "bare"} and answer.kind != "tuple":
        return _same_members(gold.items, answer.items)
    if gold.kind == answer.kind == "union":
        return _same_members(gold.items, answer.items)
    if gold.kind == answer.kind or kinds == {"tuple", "bare"}:
        return _same_in_order(gold.items, answer.items)
    if "matrix" in kinds or ("union" in kinds and not kinds & {"set", "bare"}):  # (0, 2) ∪ (1, 3) is (0, 3)
        return None
    return False


def _same_in_order(gold: Sequence[Answer], answer: Sequence[Answer]) -> bool | None:
    if len(gold) != len(answer):
        return False
    verdicts = [agree(g, a) for g, a in zip(gold, answer, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _same_members(gold: Sequence[Answer], answer: Sequence[Answer]) -> bool | None:
    """As sets: every member on either side agrees with one on the other; a subset is not enough."""
    table = [[agree(g, a) for a in answer] for g in gold]
    lines = table + [list(column) for column in zip(*table, strict=True)]
    if any(all(verdict is False for verdict in line) for line in lines):
        return False
    if all(any(verdict is True for verdict in line) for line in lines):
        return len({show(item) for item in gold}) == len({show(item) for item in answer}) or None
    return None
