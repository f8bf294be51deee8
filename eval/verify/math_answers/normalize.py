"""One spelling for answers that differ only in spelling (markup, spacing, Unicode, units); idempotent."""

import functools
import re
from collections.abc import Callable, Iterator

MAX_ANSWER_CHARS = 2000
MAX_UNIT_CHARS = 200

UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∗": "*", "÷": "\\div ",
        "∕": "/", "⁄": "/", "π": "\\pi ", "∞": "\\infty ", "√": "\\sqrt ", "°": "^\\circ ", "º": "^\\circ ",
        "∪": "\\cup ",
        "∩": "\\cap ", "∈": "\\in ", "≤": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "⩾": "\\ge ", "≠": "\\ne ", "±": "\\pm ",
        "∅": "\\emptyset ", "²": "^2", "³": "^3", "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}",
        "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "％": "%", "，": ",",
        "（": "(", "）": ")", "θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ", "λ": "\\lambda ", "\x00": None,
        "\u200b": None, "\ufeff": None,
    }
)  # fmt: skip
REPLACED: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\s+"), " "),
    (re.compile(r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|bigg|displaystyle|textstyle|limits)(?![a-zA-Z])\.?"), ""),
    (re.compile(r"(?<!\\)\\[()\[\]]"), " "),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,|\\!|\\;|\\:) {0,3}(?=\d{3}(?!\d))"), ""),  # thousands, as LaTeX spaces them
    (re.compile(r"(?<!\\)\\(?:[,;:! ]|(?:quad|qquad|thinspace|enspace|hfill)(?![a-zA-Z]))|~"), " "),
    (re.compile(r"\\(?:math(?:rm|bf|it|sf)|text(?:bf|it|rm)|[mh]box|operatorname|boldsymbol|bm)\*? ?\{"), r"\\text{"),
    (re.compile(r"\\leq(?:slant)?(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\geq(?:slant)?(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\neq(?![a-zA-Z])|(?<= )!="), r"\\ne "),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\(?:dots|ldots|cdots)(?![a-zA-Z])"), "..."),
    (re.compile(r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\^ ?\{ ?(\w) ?\}"), r"^\1 "),
    (re.compile(r"(?<![\w.\\])(?:np|numpy|math|sympy)\.(?:(log)|(?=[a-z]))"), lambda match: "\\ln" if match[1] else ""),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\\$|\\(?:pounds|euro)(?![a-zA-Z])|[$€£]"), ""),
    (re.compile(r"(?<=[\w)\]}])\*\*(?=[\w(\\{-])"), "^"),  # x**2; what is left of ** is markdown
    (re.compile(r"\*\*|__|`"), ""),
    (re.compile(r"\s+"), " "),
]  # fmt: skip
WRAPPERS = [("\\boxed{", "}"), ("**", "**"), ("$$", "$$"), ("$", "$")]


@functools.lru_cache(maxsize=1 << 13)
def normalize(text: str) -> str:
    """Markdown, dollar signs and LaTeX spacing go; 1,000 becomes 1000; \\dfrac becomes \\frac."""
    text = text[: MAX_ANSWER_CHARS + 1].strip()
    for _ in range(4):
        once = _once(text)
        if once == text:
            break
        text = once
    return text


def _once(text: str) -> str:
    text = text.translate(UNICODE)
    for start, end in WRAPPERS:
        if len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end):
            text = text[len(start) : len(text) - len(end)]
    for pattern, replacement in REPLACED:
        text = pattern.sub(replacement, text)
    text = without_thousands_commas(text.strip())
    if match := SPACED_THOUSANDS.fullmatch(text):
        text = match[1] + match[2].replace(" ", "") + match[3]
    if not text.endswith("..."):
        text = text.rstrip(" .,;:")
    return text[:-1].rstrip() if text.endswith("\\") and not text.endswith("\\\\") else text


THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
SPACED_THOUSANDS = re.compile(r"([^\d(\[{,]{0,40})([1-9]\d{0,2}(?: \d{3})+)((?:\.\d+)?(?!\d)[^\d/,]*)")
LEVELS = re.compile(r"(?P<open>[({\[])|(?P<close>[)}\]])|,")


def without_thousands_commas(text: str) -> str:
    """1,234 is 1234, but not in (1,234) or 1,234,5: only where every comma of its level separates thousands."""
    numbers = [match.span() for match in THOUSANDS.finditer(text)]
    if not numbers:
        return text
    drop: set[int] = set()
    for commas in comma_levels(text):
        if all(any(start < comma < end for start, end in numbers) for comma in commas):
            drop.update(commas)
    return "".join(character for at, character in enumerate(text) if at not in drop)


def comma_levels(text: str) -> Iterator[list[int]]:
    """Where the commas are, by level: on the outermost, and in each argument of a command such as \\frac{1,234}{5}."""
    levels: list[tuple[bool, list[int]]] = [(True, [])]  # whether it is one of these, and its commas
    for match in LEVELS.finditer(text):
        if match["open"]:
            argument = match["open"] == "{" and bool(ARGUMENT.search(text, max(0, match.start() - 20), match.start()))
            levels.append((argument, []))
        elif not match["close"]:
            levels[-1][1].append(match.start())
        elif len(levels) > 1:
            single, commas = levels.pop()
            if single:
                yield commas
    yield from (commas for single, commas in levels if single)


ARGUMENT = re.compile(r"(?:\\(?:frac|sqrt|text|binom|log|exp)|[}\]^_]) ?$")


TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def unwrap_text(text: str) -> str:
    """\\text{east} is east."""
    return re.sub(r"\s+", " ", TEXT.sub(r" \1 ", text)).strip()


UNITS = {
    alias: name
    for name, aliases in {
        "mm": "mm millimeter millimeters millimetre millimetres",
        "cm": "cm centimeter centimeters centimetre centimetres",
        "m": "m meter meters metre metres",
        "km": "km kilometer kilometers kilometre kilometres",
        "in": "in inch inches",
        "ft": "ft foot feet",
        "yd": "yd yard yards",
        "mi": "mi mile miles",
        "g": "g gram grams",
        "kg": "kg kilogram kilograms",
        "lb": "lb lbs pound pounds",
        "oz": "oz ounce ounces",
        "s": "s sec secs second seconds",
        "min": "min mins minute minutes",
        "h": "h hr hrs hour hours",
        "day": "day days",
        "week": "week weeks",
        "month": "month months",
        "year": "year years yr yrs",
        "ml": "ml milliliter milliliters",
        "l": "l liter liters litre litres",
        "cent": "cent cents",
        "dollar": "dollar dollars usd",
        "degree": "degree degrees deg",
        "radian": "radian radians rad",
        "mph": "mph",
        "kph": "kph",
    }.items()
    for alias in aliases.split()
}
UNIT_CHAIN = re.compile(r"(?:\\text ?\{[^{}]*\}|\^ ?(?:\{ ?-?\d ?\}|-?\d)|[ /]|\\cdot(?![a-zA-Z]))+")
UNIT_WORDS = re.compile(r" (?P<words>[A-Za-z][A-Za-z]+(?:[ /-][A-Za-z]+){0,4}) ?(?P<power>\^ ?\{?\d\}?)?")
PRODUCT = re.compile(rf"(?!(?i:{'|'.join(UNITS)}|pct|am|pm)$)(?:[A-Za-z]{{2}}|[^aeiouAEIOU ]{{3}})")  # the xy of 2 xy
UNIT_PART = re.compile(r"(/)|([a-z][a-z-]*) ?(?:\^ ?\{? ?(-?\d) ?\}?)?|(?: |\\cdot(?![a-z]))|(.)", re.DOTALL)
NOT_UNITS = {
    "and", "or", "to", "base", "mod", "pi", "sqrt", "if", "is", "where", "for", "plus", "minus", "times", "over",
    "not", "never", "than", "more", "less", "least", "most",
}  # fmt: skip
SQUARE = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}


def split_unit(text: str) -> tuple[str, str]:
    """A value and its unit, "" if none: `10 \\text{ cm}^2` is (10, cm^2), `18 dollars a day` is (18, dollars a day)."""
    if len(text) > MAX_UNIT_CHARS:
        return text, ""
    if text.endswith("^\\circ") and text != "^\\circ":
        return text.removesuffix("^\\circ").strip(), "degree"
    value, tail = _cut_tail(text)
    name = unit_name(TEXT.sub(r" \1 ", tail)) if value else None
    return (text, "") if name is None else (value, name)


def _cut_tail(text: str) -> tuple[str, str]:
    """A value and what may be its unit: \\text groups, words or (words) after it; ("", "") if nothing may."""
    at = text.find("\\text")
    if at > 0 and UNIT_CHAIN.fullmatch(text, at):
        return text[:at].rstrip(), text[at:]
    value, _, words = text.removesuffix(")").rpartition("(")  # 51 (trucks)
    if text.endswith(")") and value[-1:] == " " and value[-2:-1].isdigit() and UNIT_WORDS.fullmatch(" " + words):
        return value.rstrip(), words
    end = max(text.rfind(character) for character in ")}0123456789")
    if re.fullmatch(r"[^A-Za-z]{0,3}", text[end + 1 :]):  # that was the unit's power
        end = max(text.rfind(character, 0, text.rfind("^") + 1) for character in ")}0123456789")
    match = UNIT_WORDS.fullmatch(text, end + 1) if end >= 0 else None
    if match is None or PRODUCT.fullmatch(match["words"]):
        return "", ""
    known = is_known_unit(unit_name(match.group()) or "")
    return (text[: end + 1], match.group()) if known or "/" not in match.group() else ("", "")


def unit_name(spelled: str) -> str | None:
    """One spelling of a unit: cm^2 for square centimeters, `m s^-2` for m/s^2; None if these words are no unit."""
    parts, below = [], False
    for slash, word, power, other in UNIT_PART.findall(spelled.replace(".", "").casefold()):
        if other or word in NOT_UNITS:
            return None
        below |= bool(slash)
        if word:
            parts.append((word, -int(power or 1) if below else int(power or 1)))
    if len(parts) > 1 and parts[0][0] in SQUARE:
        parts = [(parts[1][0], int(SQUARE[parts[0][0]])), *parts[2:]]
    if all(word in UNITS for word, _ in parts):
        parts = sorted((UNITS[word], power) for word, power in parts)
    return " ".join(word if power == 1 else f"{word}^{power}" for word, power in parts)


def is_known_unit(name: str) -> bool:
    return bool(name) and all(part.partition("^")[0] in UNITS.values() for part in name.split())
