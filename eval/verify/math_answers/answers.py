"""What an answer says, apart from how it is written: its class, and whether it agrees with the gold answer.

The class is a text that depends on the answer and the gold only: equal for 0.5, 1/2 and \\frac12, the same whatever
else was seen, and a fixed point: the class of a class is itself. `compare` answers True or False where it can tell,
None where a computer algebra system must decide.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from offleash.eval.verify.math_answers.expressions import Reading, number, possible_readings, read_equation
from offleash.eval.verify.math_answers.normalize import (
    MAX_ANSWER_CHARS,
    is_known_unit,
    normalize,
    split_unit,
    unwrap_text,
)
from offleash.eval.verify.math_answers.shapes import INFINITY, SYMBOL, Answer, understand

SHOWN = {"tuple": "({})", "closed": "[{}]", "left": "[{})", "right": "({}]", "set": "{{{}}}", "bare": "{{{}}}"}
PROSE, MANY_WORDS = re.compile(r"(?<![\\a-zA-Z])(?!(?:[pbBvV]|small)?matrix|array|cases)[a-zA-Z]{3,}"), 4
ROUNDED_PLACES, RELATIVE = 6, Fraction(2, 10**5)


@functools.lru_cache(maxsize=1 << 13)
def answer_class(raw: str) -> str:
    """The class of an answer on its own: units, names and brackets around one thing left out."""
    return show(understand(raw))


def show(answer: Answer) -> str:
    if answer.kind == "leaf":
        return _leaf_class(answer)
    if answer.kind == "words":
        return answer.text if understand(answer.text).kind == "words" else f"\\text{{{answer.text}}}"
    if answer.kind == "relation":
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
        return number(answer.reading.exact / 100, False).key
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


def _is_known(answer: Answer) -> bool:
    """Clear, or at least one value, whichever of the ways to read it is meant."""
    return is_clear(answer) or (answer.kind == "leaf" and bool(possible_readings(answer.text)))


@functools.lru_cache(maxsize=1 << 13)
def compare(gold: str, answer: str) -> bool | None:
    """Does the answer say what the gold says? None if only a computer algebra system can tell."""
    if (letter := _choice(gold)) is not None and (chosen := _choice(answer, explained=True)) is not None:
        return chosen == letter
    golden, given = understand(gold), understand(answer)
    verdict = agree(golden, given)
    if verdict is not True and (_is_decimal_comma(golden, given) or _is_decimal_comma(given, golden)):
        return True
    if verdict is None and is_clear(golden) and len(PROSE.findall(given.text)) >= MANY_WORDS:
        return False  # a sentence, where a value was asked for
    return verdict


def is_near(gold: str, answer: str, tolerance: Fraction) -> bool:
    """Whether a number is that close to the gold, relative to it, in its unit and base; 50.1% is near 50 and 0.5."""
    golden, given = understand(gold), understand(answer)
    wanted, value = (one.reading.value if one.reading is not None else None for one in (golden, given))
    if wanted is None or value is None or not _labels_agree(golden, given):
        return False
    scaled = value / (100 if given.percent else 1), wanted / (100 if golden.percent else 1)
    sign_left_out = golden.percent != given.percent and (golden.percent or abs(wanted) > 1)
    pairs = [scaled, (value, wanted)] if sign_left_out else [scaled]
    return any(abs(one - other) <= tolerance * abs(other) for one, other in pairs)


DECIMAL_COMMA = re.compile(r"[+-]?\d{1,20},\d{1,20}")


def _is_decimal_comma(one: Answer, other: Answer) -> bool:
    """Whether one side is 3,5 where the other, a decimal fraction, is 3.5."""
    value, unit = split_unit(one.text) if one.kind == "bare" and other.kind == "leaf" else ("", "")
    reading = other.reading
    if not DECIMAL_COMMA.fullmatch(value) or reading is None or reading.exact is None or not reading.decimal:
        return False
    plain = not (other.percent or other.base or one.name or other.name or _units_conflict(unit, other.unit))
    return plain and reading.exact.denominator > 1 and reading.exact == Fraction(value.replace(",", "."))


CHOICE = re.compile(r"\(?([A-J])\)?")
EXPLAINED_CHOICE = re.compile(r"\(?([A-Ja-j])\)?(?:[.:)].*)?|\(([A-Ja-j])\).*", re.DOTALL)

SECOND_CHOICE = re.compile(r"\([A-J]\)|(?:(?<![a-z])or|(?<![a-z])and|[,/;]) ?\(?[A-J](?![A-Za-z])")  # (A) or (B)


def _choice(raw: str, explained: bool = False) -> str | None:
    """The letter of a multiple-choice answer: `C`, `(C)`, and in a reply also `C. 12` or `(C) 12`."""
    if len(raw) > MAX_ANSWER_CHARS:
        return None
    text = unwrap_text(normalize(raw))
    match = (EXPLAINED_CHOICE if explained else CHOICE).fullmatch(text)
    if explained and SECOND_CHOICE.search(text, 3):
        return None
    return next(letter for letter in match.groups() if letter).upper() if match else None


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
        return False if _is_known(gold) and _is_known(answer) else None
    return None


def _details_agree(gold: Answer, answer: Answer) -> bool:
    return _labels_agree(gold, answer) and _percent_agrees(gold, answer)


def _labels_agree(gold: Answer, answer: Answer) -> bool:
    """Name, base and unit; what is left out conflicts with nothing, except that a number without a base is decimal."""
    if _names_conflict(gold.name, answer.name):
        return False
    if answer.base and answer.base != (gold.base or "10"):
        return False
    return not _units_conflict(gold.unit, answer.unit)


def _units_conflict(gold: str, answer: str) -> bool:
    """Two known units that differ; a missing unit, or a word that is not a unit, conflicts with nothing."""
    return gold != answer and is_known_unit(gold) and is_known_unit(answer)


def _percent_agrees(gold: Answer, answer: Answer) -> bool:
    """The same digits, one with a percent sign: fine unless the gold is a plain number up to 1."""
    if gold.percent == answer.percent or gold.percent:
        return True
    return gold.reading is None or gold.reading.exact is None or abs(gold.reading.exact) > 1


def _leaves_agree(gold: Answer, answer: Answer) -> bool | None:
    if gold.reading is None or answer.reading is None:
        return False if _can_never_agree(gold, answer) else None
    if not _details_agree(gold, answer) and gold.reading.key == answer.reading.key:
        return False
    if gold.percent != answer.percent:
        return _scaled_agree(gold, answer)
    if _units_conflict(gold.unit, answer.unit):
        return False
    return _values_agree(gold.reading, answer.reading)


def _can_never_agree(gold: Answer, answer: Answer) -> bool:
    """However the unclear one of two leaves is read, it differs from the other."""
    if is_clear(gold) and is_clear(answer):
        return True
    ways = [(one.reading,) if one.reading else possible_readings(one.text) for one in (gold, answer)]
    if not all(ways) or gold.percent or answer.percent:
        return False
    return all(_values_agree(g, a) is False for g in ways[0] for a in ways[1])


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
        return None if same_where_positive and not _differ_elsewhere(gold, answer) else False
    if gold.value is not None and answer.value is not None:
        return (gold.decimal or answer.decimal) and rounds_alike(gold.value, answer.value)
    return False


def _differ_elsewhere(gold: Reading, answer: Reading) -> bool:
    """Whether two formulas have different real values where some variable is negative, as x and |x| do."""
    pairs = zip(gold.elsewhere, answer.elsewhere, strict=True)
    return any(g != a and not any(one.endswith(("i", "undefined")) for one in (g, a)) for g, a in pairs)


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
    return False if _is_known(gold) and _is_known(answer) else None  # an equation against a value


def _names_conflict(gold: str, answer: str) -> bool:
    """x = 3 is not y = 3, but f(x) = 3 or \\text{area} = 3 may well be."""
    return gold != answer and bool(SYMBOL.fullmatch(gold)) and bool(SYMBOL.fullmatch(answer))


def _structures_agree(gold: Answer, answer: Answer) -> bool | None:
    kinds = {gold.kind, answer.kind}
    if kinds <= {"set", "bare", "tuple"} and _each_named(gold) != _each_named(answer):
        return _same_by_name(gold, answer)
    if kinds <= {"set", "bare"} and answer.kind != "tuple":
        return _same_members(gold.items, answer.items)
    if gold.kind == answer.kind == "union":
        return _same_members(gold.items, answer.items)
    if gold.kind == answer.kind or kinds == {"tuple", "bare"}:
        return _same_in_order(gold.items, answer.items)
    if "union" in kinds:  # unions of numeric intervals were merged: a remaining union is not a single interval
        return False if _is_numeric(gold) and _is_numeric(answer) else None
    return None if "matrix" in kinds else False


ROOT = re.compile(r"[A-Za-z]_\{?\d{1,3}\}?")


def _each_named(answer: Answer) -> bool:
    """Whether it gives each of several unknowns its value: x = 2, y = 3. x_1 = 2, x_2 = 3 are the roots of one."""
    names = {item.name for item in answer.items}
    roots = all(ROOT.fullmatch(name) for name in names) and len({name[0] for name in names}) == 1
    return all(names) and len(names) == len(answer.items) > 1 and not roots


def _same_by_name(gold: Answer, answer: Answer) -> bool | None:
    """Named values against bare ones: in the order given, or in that of the names."""
    if any(item.name for item in (gold if _each_named(answer) else answer).items):
        return False
    verdicts = {
        _same_in_order(in_order(gold.items), in_order(answer.items))
        for in_order in (tuple, lambda items: tuple(sorted(items, key=lambda item: item.name)))
    }
    return True if True in verdicts else None if None in verdicts else False


def _is_numeric(answer: Answer) -> bool:
    if answer.items:
        return all(_is_numeric(item) for item in answer.items)
    return bool(INFINITY.fullmatch(answer.text)) or (answer.reading is not None and answer.reading.value is not None)


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
