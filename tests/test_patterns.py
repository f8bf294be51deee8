"""No regular expression of the package takes more than linear time, on strings made from the pattern to be its worst.

Patterns are collected from the source, so that a new one is tested without being listed. CPU time is compared between
a size and four times that size: 4 is linear, 16 quadratic, 64 cubic.
"""

import ast
import gc
import importlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from offleash.eval.verify.math_answers.normalize import MAX_ANSWER_CHARS

ROOT = Path(__file__).parents[1]
METHODS = ("match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split")
SIZES = (24, 96, 384, 1_536, 6_144, 24_576)  # an exponential pattern is caught by the first
LONG = 0.02  # CPU seconds below which growth is not looked at
TOO_STEEP = 9.0
CAPPED = {"eval/verify/math_answers/": MAX_ANSWER_CHARS}
"""Where patterns only ever see texts of this length: there it is the time at that length that counts."""
QUADRATIC = re.compile("a+b")
AT_THE_CAP = 1000  # times what a quadratic pattern takes there, about a CPU second; slow machines are slow for both
TRUSTED = {"eval/report/figure_style.py"}  # matplotlib's own SVG of our figures
ONLY_KNOWN_AT_RUN_TIME = {
    "eval/tasks/code_tasks.py": "the name of a function, between fixed words",
    "train/commands/metrics.py": "a tag of our own table",
    "train/forecast/model_size.py": "PEFT's target_modules, from the user's own recipe",
}


@dataclass(frozen=True)
class Found:
    where: str
    pattern: str
    flags: int
    methods: tuple[str, ...]

    def __str__(self) -> str:
        return self.where


def sources() -> dict[Path, str]:
    paths = [path for top in ("eval", "callbacks", "train") for path in sorted((ROOT / top).rglob("*.py"))]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def patterns() -> tuple[list[Found], list[str]]:
    """Every pattern that is written in the package, and the calls whose pattern is only known when they run."""
    texts, found, unknown = sources(), [], []
    everything = "\n".join(texts.values())
    for path, text in texts.items():
        tree = ast.parse(text)
        names = {id(node.value): node.targets[0] for node in ast.walk(tree) if isinstance(node, ast.Assign)}
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
                continue
            if ast.unparse(call.func.value) != "re" or call.func.attr not in (*METHODS, "compile"):
                continue
            where = f"{path.relative_to(ROOT).as_posix()}:{call.lineno}"
            name = ast.unparse(names[id(call)]) if id(call) in names else ""
            pattern = written(call.args[0], path, name)
            if pattern is None:
                unknown.append(f"{path.relative_to(ROOT).as_posix()}: {ast.unparse(call.args[0])}")
                continue
            flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"]
            flags += [arg for arg in call.args[1:] if re.fullmatch(r"re\.[A-Z]+( | re\.[A-Z]+| \|)*", ast.unparse(arg))]
            value = eval(ast.unparse(flags[0]), {"re": re}) if flags else 0
            methods: tuple[str, ...] = (call.func.attr,)
            if call.func.attr == "compile":
                used = set(re.findall(rf"\b{re.escape(name)}\.(\w+)\(", everything)) & set(METHODS) if name else set()
                methods = tuple(sorted(used)) or ("fullmatch", "search")
            found.append(Found(where, pattern, int(value), methods))
    return found, unknown


def written(pattern: ast.expr, path: Path, name: str) -> str | None:
    """A pattern as it is written, or as its module has made it under a name; None if it is made inside a function."""
    try:
        literal: str = ast.literal_eval(pattern)
    except ValueError:
        module = ".".join(["offleash", *path.relative_to(ROOT).with_suffix("").parts])
        made = getattr(importlib.import_module(module), name, None) if name else None
        return made.pattern if isinstance(made, re.Pattern) else None
    return literal


# Strings made from a pattern


SAMPLES = "a1 \n\t.,-+*/\\{}()[]<>=#_`|$^%&\"':;é∞A"


def members(inside: Any) -> list[str]:
    """Characters of a class, one of each kind."""
    try:
        compiled = re.compile(f"[{''.join(map(_class_part, inside))}]")
    except re.error:
        return ["a"]
    own = [chr(value if kind is op.LITERAL else value[0]) for kind, value in inside if kind in (op.LITERAL, op.RANGE)]
    return [c for c in dict.fromkeys([*own, *SAMPLES]) if compiled.fullmatch(c)][:6] or ["a"]


def _class_part(item: Any) -> str:
    kind, value = item
    if kind is op.NEGATE:
        return "^"
    if kind is op.LITERAL:
        return re.escape(chr(value))
    if kind is op.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    categories = {op.CATEGORY_DIGIT: "\\d", op.CATEGORY_NOT_DIGIT: "\\D", op.CATEGORY_SPACE: "\\s"}
    categories |= {op.CATEGORY_NOT_SPACE: "\\S", op.CATEGORY_WORD: "\\w", op.CATEGORY_NOT_WORD: "\\W"}
    return categories[value]


def texts_of(tree: Any) -> list[str]:
    """A few texts that the tree matches."""
    made = [""]
    for kind, value in tree:
        made = [start + end for start in made[:4] for end in texts_of_one(kind, value)][:8]
    return made


def texts_of_one(kind: Any, value: Any) -> list[str]:
    if kind is op.LITERAL:
        return [chr(value)]
    if kind is op.NOT_LITERAL:
        return [next(c for c in SAMPLES if c != chr(value))]
    if kind is op.ANY:
        return ["a"]
    if kind is op.IN:
        return members(value)
    if kind is op.BRANCH:
        return [text for branch in value[1] for text in texts_of(branch)[:2]]
    if kind is op.SUBPATTERN:
        return texts_of(value[3])
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        low, _, inner = value
        return [text * max(low, 1) for text in texts_of(inner)] + ([""] if low == 0 else [])
    if kind is op.ATOMIC_GROUP:
        return texts_of(value)
    return [""]


def pumps(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """(what precedes, what is repeated) of everything that repeats, however deep."""
    for kind, value in tree:
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            _, high, inner = value
            if high is op.MAXREPEAT or high > 20:
                yield from ((before, text) for text in texts_of(inner) if text)
            yield from pumps(inner, before)
        elif kind is op.SUBPATTERN:
            yield from pumps(value[3], before)
        elif kind is op.BRANCH:
            for branch in value[1]:
                yield from pumps(branch, before)
        before += texts_of_one(kind, value)[0]


def attacks(found: Found) -> dict[str, Callable[[int], str]]:
    """Builders of strings of a given size, by what they look like."""
    tree = _parser.parse(found.pattern, found.flags)
    made: dict[str, Callable[[int], str]] = {}

    def add(start: str, unit: str, end: str) -> None:
        if unit:
            made.setdefault(repr((start, unit, end)), lambda size: start + unit * (size // len(unit)) + end)

    whole = texts_of(tree)
    for text in whole[:4]:
        add("", text, "\x01")
        add("", text[:-1], "\x01")
    for before, pump in dict.fromkeys(pumps(tree)):
        for end in ("", "\x01"):
            add(before, pump, end)
        add("", before + pump, "\x01")
        add("", before, "\x01")
        add("", pump, "\x01")
        for text in whole[:2]:
            add(before, pump, text[-1:] + "\x01")
    return made


def seconds(run: Callable[[], Any]) -> float:
    """The better of two runs, without the garbage collector: on a large heap it takes longer than any pattern."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(2):
            started = time.process_time()
            run()
            best = min(best, time.process_time() - started)
            if best > 10 * LONG:
                break
    finally:
        gc.enable()
    return best


def cap_of(found: Found) -> int | None:
    return next((cap for room, cap in CAPPED.items() if found.where.startswith(room)), None)


def fault(found: Found) -> str:
    """The string on which a pattern takes too long, and how long; "" if there is none."""
    compiled, cap = re.compile(found.pattern, found.flags), cap_of(found)
    for method, (name, build) in itertools.product(found.methods, attacks(found).items()):
        before = 0.0
        for size in SIZES if cap is None else (cap,):
            took = seconds(partial(RUN[method], compiled, build(size)))
            told = f"{method} of {name} x {size} took {took:.4f} CPU seconds, a quarter of it {before:.4f}"
            if took > LONG:
                if cap is None:
                    is_steep = not before or took / before > TOO_STEEP
                else:
                    is_steep = took > AT_THE_CAP * seconds(partial(QUADRATIC.search, "a" * cap))
                if is_steep:
                    return told
                break
            before = took
    return ""


RUN: dict[str, Callable[[re.Pattern[str], str], Any]] = {
    **{name: (lambda pattern, text, name=name: getattr(pattern, name)(text)) for name in METHODS},
    "finditer": lambda pattern, text: list(pattern.finditer(text)),
    "sub": lambda pattern, text: pattern.sub("", text),
    "subn": lambda pattern, text: pattern.subn("", text),
}
FOUND, UNKNOWN = patterns()


@pytest.mark.parametrize("found", [one for one in FOUND if one.where.split(":")[0] not in TRUSTED], ids=str)
def test_no_pattern_is_steeper_than_linear(found: Found) -> None:
    assert fault(found) == ""


def test_patterns_are_found_wherever_they_stand() -> None:
    assert len(FOUND) > 90
    assert {where.split(": ")[0] for where in UNKNOWN} == ONLY_KNOWN_AT_RUN_TIME.keys()
    used = {(one.where.split(":")[0], one.methods) for one in FOUND}
    assert ("eval/tasks/text_tasks.py", ("findall",)) in used  # compiled here, used there
    assert ("eval/tasks/gym/answers.py", ("search",)) in used  # written where it is used


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\\frac\s*\{?\s*(\d+)\s*\}?\s*\{?\s*(\d+)", "sub"),
        (r"<solution>(.*?)</solution>", "findall"),
        (r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", "findall"),
        (r"(a+)+$", "match"),
        (r"\s*\n", "sub"),
        (r"(?:\*\*|\^)\s*\(?\s*-?\s*(\d+)", "findall"),
    ],
)
def test_steep_patterns_are_caught(pattern: str, method: str) -> None:
    assert "took" in fault(Found("planted", pattern, int(re.DOTALL | re.MULTILINE), (method,)))
