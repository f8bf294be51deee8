"""One spelling for answers that differ only in spelling (markup, spacing, Unicode, units); idempotent."""

import functools
import re

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
REPLACED = [
    (re.compile(r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|bigg|displaystyle|textstyle|limits)(?![a-zA-Z])\.?"), ""),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,|\\!|\\;|\\:)\s*(?=\d{3})"), ""),  # thousands, as LaTeX spaces them
    (re.compile(r"(?<!\\)\\(?:[,;:! ]|(?:quad|qquad|thinspace|enspace|hfill)(?![a-zA-Z]))|~"), " "),
    (re.compile(r"\\(?:math(?:rm|bf|it|sf)|text(?:bf|it|rm)|[mh]box|operatorname|boldsymbol|bm)\*?\s*\{"), r"\\text{"),
    (re.compile(r"\\leq(?:slant)?(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\geq(?:slant)?(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\neq(?![a-zA-Z])"), r"\\ne "),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\(?:dots|ldots|cdots)(?![a-zA-Z])"), "..."),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\^\s*\{\s*(\w)\s*\}"), r"^\1 "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\\$|\\(?:pounds|euro)(?![a-zA-Z])|[$€£]"), ""),
    (re.compile(r"(?<=[\w)\]}])\*\*(?=[\w(\\{-])"), "^"),  # x**2; what is left of ** is markdown
    (re.compile(r"\*\*|__|`"), ""),
    (re.compile(r"\s+"), " "),
]  # fmt: skip
WRAPPERS = [("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("**", "**"), ("$$", "$$"), ("$", "$")]
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")


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
    text = THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    text = text.strip()
    return text[:-1].rstrip() if text.endswith((".", ",", ";", ":")) and not text.endswith("...") else text


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
UNIT_TAIL = re.compile(
    r"""^(?P<value>.*[\d.)}%\w])\s* (?:(?P<degree>\^\\circ) | \\text\s*\{(?P<text>[^{}]*)\} |
    (?<=[\d)}])\s(?P<bare>[A-Za-z][A-Za-z]+(?:[ -][A-Za-z]+){0,4})) \s*(?:\^\s*\{?(?P<power>\d)\}?)?$""",
    re.VERBOSE | re.DOTALL,
)
NOT_UNITS = {
    "and", "or", "to", "base", "mod", "pi", "sqrt", "if", "is", "where", "for", "plus", "minus", "times", "over",
}  # fmt: skip
SQUARE = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}


def split_unit(text: str) -> tuple[str, str]:
    """A value and its unit, "" if none: `10 \\text{ cm}^2` is (10, cm^2), `18 dollars a day` is (18, dollars a day)."""
    match = UNIT_TAIL.match(text) if len(text) <= MAX_UNIT_CHARS else None
    if match is None:
        return text, ""
    if match["degree"]:
        return match["value"].strip(), "degree"
    words = (match["text"] if match["bare"] is None else match["bare"]).replace(".", "").casefold().split()
    if not words:
        return match["value"].strip(), ""
    if NOT_UNITS.intersection(words) or not all(word.replace("-", "").isalpha() for word in words):
        return text, ""
    power = match["power"] or ""
    if words[0] in SQUARE and len(words) > 1:
        power, words = SQUARE[words[0]], words[1:]
    name = UNITS.get(words[0], words[0]) if len(words) == 1 else " ".join(words)
    return match["value"].strip(), name + (f"^{power}" if power else "")
