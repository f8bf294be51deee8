"""An answer taken apart: lists, tuples, sets, intervals, inequalities, matrices, equations, values with their units.

`understand` reads the normalized spelling outside in; brackets around a single thing are dropped. Leaves
are read by value (`expressions`). Linear in the answer's length, and bounded in depth and in the number of parts.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from offleash.eval.verify.math_answers.expressions import Reading, number, read
from offleash.eval.verify.math_answers.normalize import MAX_ANSWER_CHARS, normalize, split_unit, unwrap_text

Kind = Literal[
    "leaf", "words", "bare", "set", "tuple", "closed", "left", "right", "union", "matrix", "equation", "relation"
]
BRACKETS: dict[tuple[str, str], Kind] = {
    ("(", ")"): "tuple",
    ("[", "]"): "closed",
    ("[", ")"): "left",
    ("(", "]"): "right",
}
CANONICAL = re.compile(r"≈\S+|(?:f|eq)\([^()]*\)#[0-9a-f]{12}|#[0-9a-f]{16}")  # classes that are not answers
MAX_ITEMS, MAX_NESTING = 100, 6


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer taken apart. `text` is the normalized spelling; `name` the left side of `x = 5`."""

    kind: Kind
    text: str
    items: tuple["Answer", ...] = ()
    unit: str = ""
    base: str = ""
    percent: bool = False
    name: str = ""
    reading: Reading | None = None
    too_large: bool = False


@functools.lru_cache(maxsize=1 << 13)
def understand(raw: str) -> Answer:
    if len(raw) > MAX_ANSWER_CHARS:
        return Answer("leaf", "#" + hashlib.sha256(raw.encode(errors="replace")).hexdigest()[:16], too_large=True)
    return parse(normalize(raw), 0)


def parse(text: str, depth: int) -> Answer:
    if depth > MAX_NESTING:
        return Answer("leaf", text, too_large=True)
    text = text.strip()
    for reader in READERS:
        if (found := reader(text, depth)) is not None:
            return found
    return _leaf(text)


def _canonical(text: str, depth: int) -> Answer | None:
    """A class is our notation, not an answer."""
    return Answer("leaf", text) if CANONICAL.fullmatch(text) else None


def _words(text: str, depth: int) -> Answer | None:
    """`\\text{east}`, `Evelyn`, `ellipse`: not a formula. One letter, or two, may be variables."""
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
    "no", "on", "up", "so", "it", "is", "in", "at", "am", "pm", "or", "if", "to", "us", "we", "he", "me",
}  # fmt: skip


def _union(text: str, depth: int) -> Answer | None:
    parts = split_top(text, ("\\cup",))
    if len(parts) == 1:
        parts = split_top(text, ("\\text{or}", "\\text{ or }", " or ", "\\lor", "\\vee"))
        if len(parts) > 1 and not any(RELATION.search(part) for part in parts):
            return None  # "2 or 3" is a list
    if len(parts) == 1:
        return None
    return merged(text, tuple(parse(part, depth + 1) for part in parts))


def merged(text: str, parts: tuple[Answer, ...]) -> Answer:
    """A union of intervals with overlapping ones made one: (0, 2) ∪ (1, 3) is (0, 3). Others stay as they are."""
    spans = sorted((found for part in parts if (found := span(part)) is not None), key=lambda one: one[:2])
    if len(spans) < len(parts):
        return Answer("union", text, parts)
    kept = [spans[0]]
    for low, high, low_item, high_item in spans[1:]:
        last = kept[-1]
        if not touches(last[1], low):
            kept.append((low, high, low_item, high_item))
        elif high > last[1]:
            kept[-1] = (last[0], high, last[2], high_item)
    intervals = tuple(
        _make(BRACKETS["(" if low[1] > 0 else "[", ")" if high[1] < 0 else "]"], (a, b)) for low, high, a, b in kept
    )
    return intervals[0] if len(intervals) == 1 else Answer("union", text, intervals)


End = tuple[Fraction | float, int]  # a value and -1, 0 or 1: just below it, at it, just above it


def touches(high: End, low: End) -> bool:
    """Whether an interval that ends at `high` leaves no gap before one that starts at `low`."""
    return low[0] < high[0] or (low[0] == high[0] and 0 in (low[1], high[1]))


def span(part: Answer) -> tuple[End, End, Answer, Answer] | None:
    """An interval's ends in numbers, and as written; None if it is not an interval, is empty or has no numeric ends."""
    if part.kind not in BRACKETS.values() or len(part.items) != 2:
        return None
    low, high = (_end_value(item) for item in part.items)
    if low is None or high is None or low >= high:
        return None
    opens, closes = part.kind in ("tuple", "right"), part.kind in ("tuple", "left")
    return (low, 1 if opens else 0), (high, -1 if closes else 0), part.items[0], part.items[1]


def _end_value(item: Answer) -> Fraction | float | None:
    if match := INFINITY.fullmatch(item.text):
        return float("-inf") if match[1] == "-" else float("inf")
    return item.reading.value if item.reading is not None else None


BUILDER = re.compile(
    r"(?P<name>[A-Za-z])(?: ?\\in ?(?:\\mathbb ?(?:R|\{ ?R ?\})|R))? ?(?:\\mid(?![a-zA-Z])|\\vert(?![a-zA-Z])|[|:]) ?"
)


def _builder(text: str, depth: int) -> Answer | None:
    """`\\{x \\mid x > 3\\}` is the interval, if its condition is one on the variable alone."""
    opening, _, inner = _outer_brackets(text)
    match = BUILDER.match(inner.strip()) if opening == "{" else None
    if match is None:
        return None
    condition = inner.strip()[match.end() :]
    found = parse(condition, depth + 1)
    return found if found.kind in INTERVALS and match["name"] in condition else Answer("relation", text)


def _membership(text: str, depth: int) -> Answer | None:
    """`x \\in [1, 2]` is the interval."""
    match = re.match(r"(?:[A-Za-z]|\\(?:theta|alpha|lambda))\s*\\in(?![a-zA-Z])\s*", text)
    return parse(text[match.end() :], depth + 1) if match else None


RELATION = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|<=|>=|<|>")
SYMBOL = re.compile(r"[A-Za-z](?:_\w|_\{\w+\})?|\\(?:theta|alpha|beta|lambda|mu)")


def _relation(text: str, depth: int) -> Answer | None:
    """`1 \\le x < 2` is the interval [1, 2), `x \\ne 2` all but a point; any other inequality stays a relation."""
    signs = [{"\\le": "<=", "\\ge": ">="}.get(sign, sign) for sign in RELATION.findall(text)]
    if not signs or "," in text:
        return None
    sides = [side.strip() for side in RELATION.split(text)]
    if signs == ["\\ne"] and SYMBOL.fullmatch(sides[0]) and sides[1]:
        hole = parse(sides[1], depth + 1)
        ends = Answer("leaf", "-\\infty"), Answer("leaf", "\\infty")
        return Answer("union", text, (_make("tuple", (ends[0], hole)), _make("tuple", (hole, ends[1]))))
    if all(sides) and len(signs) <= 2 and (interval := _interval(sides, signs, depth)) is not None:
        return interval
    return Answer("relation", text)


def _interval(sides: list[str], signs: list[str], depth: int) -> Answer | None:
    if all(sign[0] == ">" for sign in signs):
        sides, signs = sides[::-1], [sign.replace(">", "<") for sign in signs[::-1]]
    if any(sign[0] != "<" for sign in signs):
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


def _make(kind: Kind, items: tuple[Answer, ...], text: str = "") -> Answer:
    return Answer(kind, text or "|".join(item.text for item in items), items)


def _sequence(text: str, depth: int) -> Answer | None:
    """`1, -2` or `1 and -2`: a list without brackets, whose order does not matter."""
    if (groups := _named_groups(text)) is not None:
        return _make("bare", tuple(_make("tuple", tuple(parse(part, depth + 2) for part in group)) for group in groups))
    parts = [part for part in split_top(text, (",", *GROUP_SEPARATORS)) if part]
    if len(parts) < 2 or len(parts) > MAX_ITEMS:
        return None
    name, first = _split_name(parts[0])
    if name and not any("=" in part for part in parts[1:]):  # n = 2, 3, 4
        parts = [first, *parts[1:]]
    else:
        name = ""
    return Answer("bare", text, tuple(item for part in parts for item in _flat(parse(part, depth + 1))), name=name)


GROUP_SEPARATORS = (";", "\\text{and}", "\\text{ and }", " and ", "\\text{or}", "\\text{ or }", " or ")


def _named_groups(text: str) -> list[list[str]] | None:
    """`p = 5, q = 2; p = 7, q = 2` is a list of two pairs; None if the text is not a list of such groups."""
    groups = [[part for part in split_top(group, (",",)) if part] for group in split_top(text, GROUP_SEPARATORS)]
    names = [[_split_name(part)[0] for part in group] for group in groups]
    alike = len(groups) > 1 and len(names[0]) > 1 and all(names[0]) and all(one == names[0] for one in names)
    return groups if alike and len(set(names[0])) == len(names[0]) and len(groups) <= MAX_ITEMS else None


def _flat(item: Answer) -> tuple[Answer, ...]:
    """`1 \\pm 2, 5` is one list of three."""
    return item.items if item.kind == "bare" else (item,)


def _bracketed(text: str, depth: int) -> Answer | None:
    """(a, b), [a, b), \\{a, b\\}, \\langle a, b \\rangle; brackets around a single thing are dropped."""
    opening, closing, inner = _outer_brackets(text)
    if not opening:
        return None
    if closing == "}":  # braces without a backslash are not shown: {1, 2} is a list
        return parse(inner, depth + 1) if inner.strip() else Answer("leaf", "\\emptyset")
    parts = [part for part in split_top(inner, (",", ";")) if part]
    if opening == "{" and not parts:
        return Answer("leaf", "\\emptyset")
    if len(parts) <= 1:
        encloses = opening == "{" or BRACKETS.get((opening, closing)) in ("tuple", "closed")
        return parse(inner, depth + 1) if encloses and parts else None
    if len(parts) > MAX_ITEMS:
        return None
    items = tuple(parse(part, depth + 1) for part in parts)
    if opening == "{":
        return _make("set", tuple(item for one in items for item in _flat(one)), text)
    return _make("tuple" if opening == "<" else BRACKETS[opening, closing], items, text)


def _outer_brackets(text: str) -> tuple[str, str, str]:
    """The opening and closing bracket that enclose the whole text and what is inside; ("", "", "") if none do."""
    for left, right, name in (("\\{", "\\}", "{"), ("\\langle", "\\rangle", "<"), ("{", "}", "{")):
        if text.startswith(left) and text.endswith(right) and closes_at_end(text):
            return name, right, text[len(left) : len(text) - len(right)]
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and closes_at_end(text):
        return text[0], text[-1], text[1:-1]
    return "", "", ""


OPENING = re.compile(r"\\\{|\\langle(?![a-zA-Z])|[({\[]")
ANY_BRACKET = re.compile(r"\\[{}]|\\[lr]angle(?![a-zA-Z])|[()\[\]{}]")


def closes_at_end(text: str) -> bool:
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
        if depth == 0 and (separator := next((s for s in separators if text.startswith(s, at)), None)):
            parts.append(text[start:at].strip())
            start = at = at + len(separator)
        elif bracket := ANY_BRACKET.match(text, at):
            depth += 1 if OPENING.match(bracket.group()) else -1
            at = bracket.end()
        else:
            at += 1
    parts.append(text[start:].strip())
    return parts


MATRIX = re.compile(r"\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", re.DOTALL)


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
    r"(?:\([A-Za-z](?:, ?[A-Za-z]){1,9}\)|[A-Za-z](?:_\w|_\{\w{1,9}\})?(?:\([^()=]{1,20}\))?"
    r"|\\(?:theta|alpha|beta|lambda|mu)|\\text ?\{[^{}]*\}|(?:\\angle |\\triangle )?[A-Z]{2,4}"
    r"|\|[A-Z]{2}\||\\overline ?\{[A-Z]{2}\}"
    r"|\\frac ?\{[A-Z]{2}\} ?\{[A-Z]{2}\}|[A-Z]{2} ?[/:] ?[A-Z]{2})'?"
)


def _split_name(text: str) -> tuple[str, str]:
    """`x = 5` is the name x and the value 5; ("", text) if the left side is not a name."""
    left, sign, right = text.partition("=")
    if sign and "=" not in right and NAME.fullmatch(left.strip()) and right.strip():
        return re.sub(r"\s", "", left), right.strip()
    return "", text


def _equation(text: str, depth: int) -> Answer | None:
    """`x = 5` names a value; `3x - y = 4` is an equation; a chain a = b = c ends in its value."""
    parts = [part.strip() for part in split_top(text.removeprefix("="), ("=",))]
    if len(parts) == 1 and parts[0] and text.startswith("="):  # = 5
        return parse(parts[0], depth + 1)
    if len(parts) < 2 or not all(parts):
        return None
    name = re.sub(r"\s", "", parts[0]) if NAME.fullmatch(parts[0]) else ""
    if name or len(parts) > 2 or all(map(_is_constant, parts)):  # 1 + 2 = 3
        return replace(parse(parts[-1], depth + 1), name=name)
    if SYMBOL.fullmatch(parts[1]) and _is_constant(parts[0]):  # 5 = x
        return replace(parse(parts[0], depth + 1), name=parts[1])
    return Answer("equation", text, (Answer("leaf", parts[0]), Answer("leaf", parts[1])))


def _is_constant(text: str) -> bool:
    reading = read(text)
    return isinstance(reading, Reading) and not reading.symbols


def _approximation(text: str, depth: int) -> Answer | None:
    """`\\frac{1}{3} \\approx 0.33` is its left side, if the right one is near; `x \\approx 0.33` names a value."""
    parts = split_top(text, ("\\approx",))
    if len(parts) != 2:
        return None
    if NAME.fullmatch(parts[0]):
        return replace(parse(parts[1], depth + 1), name=re.sub(r"\s", "", parts[0]))
    exact, rounded = (parse(part, depth + 1) for part in parts)
    if exact.reading is None or rounded.reading is None:
        return None
    left, right = exact.reading.value, rounded.reading.value
    near = left is not None and right is not None and abs(left - right) <= NEAR * abs(left)
    return exact if near else Answer("leaf", text)


NEAR = Fraction(1, 100)
READERS = (
    _canonical, _words, _builder, _union, _membership, _relation, _sequence, _bracketed, _matrix, _equation,
    _approximation,
)  # fmt: skip
INTERVALS = ("union", *BRACKETS.values())
INFINITY = re.compile(r"([+-]?)\s*(?:\\infty|infinity|inf|oo)")
BASE = re.compile(r"([0-9A-Za-z]+)\s*_\s*\{?\s*(?:\\text\s*\{\s*)?(\d+|[a-z]+)\s*\}?\}?")
SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*[eE]\s*([+-]?\d{1,3})")
MIXED = re.compile(r"([+-]?)(\d{1,15})\s+(\d{1,15})\s*/\s*(\d{1,15})")
REPEATING = re.compile(r"([+-]?)(\d{0,15})\.(\d{0,15})\\overline\s*\{(\d{1,15})\}")
PLAIN = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})")
PERCENT = ("percent", "percentage", "pct")
PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])|\+/-")


def _leaf(text: str) -> Answer:
    if PLUS_MINUS.search(text):
        return _plus_minus(text)
    if match := INFINITY.fullmatch(text):
        return Answer("leaf", ("-" if match[1] == "-" else "") + "\\infty")
    if (match := BASE.fullmatch(text)) and match[1][0].isdigit():
        reading = number(Fraction(match[1]), False) if match[1].isdigit() else None
        return Answer("leaf", match[1], base=match[2], reading=reading)
    value, unit = split_unit(text)
    percent = value.endswith("%") or unit in PERCENT
    value = value.rstrip("% ") if percent else value
    value = unwrap_text(value) if "\\text" in value else value
    found = _quick(value) or read(value)
    if isinstance(found, Reading):
        return Answer("leaf", value, unit="" if percent else unit, percent=percent, reading=found)
    return Answer("leaf", text, too_large=found == "too large")


def _quick(text: str) -> Reading | None:
    """Numbers in notations that are not LaTeX, and plain numbers without the full reader."""
    if PLAIN.fullmatch(text):
        return number(Fraction(text.rstrip(".")), "." in text)
    if match := SCIENTIFIC.fullmatch(text):
        return number(Fraction(match[1].rstrip(".")) * Fraction(10) ** int(match[2]), True)
    if (match := MIXED.fullmatch(text)) and int(match[4]):
        value = int(match[2]) + Fraction(int(match[3]), int(match[4]))
        return number(-value if match[1] == "-" else value, False)
    if match := REPEATING.fullmatch(text):
        fixed = Fraction(int(match[2] + match[3] or "0"), 10 ** len(match[3]))
        value = fixed + Fraction(int(match[4]), (10 ** len(match[4]) - 1) * 10 ** len(match[3]))
        return number(-value if match[1] == "-" else value, False)
    return None


def _plus_minus(text: str) -> Answer:
    """`1 \\pm \\sqrt{2}` is two values."""
    parts = PLUS_MINUS.split(text)
    if len(parts) != 2:
        return Answer("leaf", text)
    both = (_leaf(f"{parts[0]}+{parts[1]}"), _leaf(f"{parts[0]}-{parts[1]}"))
    return Answer("bare", text, both)
