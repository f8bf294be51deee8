"""The rows of one's own dataset, read by the columns that it names; whatever cannot be used is told with its row.

Empty is what is missing, null, NaN or only white space. Numbers are golds as they are written; a column of floats that
holds whole numbers, as pandas writes integers with gaps, is read as integers.
"""

import ast
import builtins
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from offleash.eval.errors import ConfigError
from offleash.eval.tasks.loading import Kind, Row, is_known
from offleash.eval.tasks.math_tasks import LETTERS

SHOWN_ROWS, SHOWN_FAULTS, SHOWN_COLUMNS = 5, 5, 30
META = ("domain", "subject")
"""Columns that are kept for reports: `offleash compare` groups problems by them."""
Label = str
"""Where a row is: its number, after its file if there are several."""


class Columns(NamedTuple):
    """Which column holds what; "" or () if none does. `tests` may name the entry point's column too."""

    question: str
    gold: str = ""
    id: str = ""
    choices: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    @property
    def named(self) -> list[str]:
        return [column for column in (self.question, self.gold, self.id, *self.choices, *self.tests) if column]


class RowFault(ValueError):
    """What is wrong with one row, in words that fit other rows too."""


def read_problems(
    located: Sequence[tuple[Label, Row]], columns: Columns, kind: Kind, where: str
) -> list[dict[str, Any]]:
    """What a Benchmark takes: question, gold, id, choices, tests and the row itself. Raises ConfigError for faults."""
    if not located:
        raise ConfigError(f"{where} has no rows: it is empty")
    check_columns([row for _, row in located], columns, where)
    read, faults, readings = [], dict[str, list[Label]](), set[str]()
    for label, row in located:
        try:
            made, reading = read_problem(row, columns, kind)
            read.append(made)
            readings.add(reading)
        except RowFault as fault:
            faults.setdefault(str(fault), []).append(label)
    faults |= repeated([(label, row.get(columns.id)) for label, row in located], "the id {!r}") if columns.id else {}
    if not faults and not columns.id:
        asked = [(label, made["question"]) for (label, _), made in zip(located, read, strict=True)]
        same = repeated(asked, "the question {!r:.60}")
        faults = {f"{fault} (give each an id if that is meant)": labels for fault, labels in same.items()}
    check_faults(faults, len(located), where)
    check_readings(readings, read, columns, where)
    return read


def check_columns(rows: Iterable[Row], columns: Columns, where: str) -> None:
    known = list(dict.fromkeys(str(column) for row in rows for column in row))
    if missing := [column for column in columns.named if column not in known]:
        more = f" and {len(known) - SHOWN_COLUMNS} more" if len(known) > SHOWN_COLUMNS else ""
        raise ConfigError(
            f"{where} has no column {', '.join(map(repr, missing))}; it has {', '.join(known[:SHOWN_COLUMNS])}{more}"
        )


def repeated(values: Sequence[tuple[Label, Any]], words: str) -> dict[str, list[Label]]:
    """Faults of the values that several rows have, which are not empty."""
    rows: dict[str, list[Label]] = {}
    for label, value in values:
        if not is_empty(value):
            rows.setdefault(str(value).strip(), []).append(label)
    faults: dict[str, list[Label]] = {}
    for value, labels in rows.items():
        if len(labels) > 1:
            faults.setdefault(f"{words.format(value)} is duplicated", []).extend(labels)
    return faults


def check_faults(faults: Mapping[str, Sequence[Label]], rows: int, where: str) -> None:
    if not faults:
        return
    told = []
    for what, labels in list(faults.items())[:SHOWN_FAULTS]:
        more = f" and {len(labels) - SHOWN_ROWS:,} more" if len(labels) > SHOWN_ROWS else ""
        told.append(f"{what} (row{'s' if len(labels) > 1 else ''} {', '.join(labels[:SHOWN_ROWS])}{more})")
    more = f"; and {len(faults) - SHOWN_FAULTS:,} other faults" if len(faults) > SHOWN_FAULTS else ""
    bad = len({label for labels in faults.values() for label in labels})
    raise ConfigError(f"{where}: {bad:,} of {rows:,} rows cannot be used: {'; '.join(told)}{more}")


def check_readings(readings: set[str], read: Sequence[Row], columns: Columns, where: str) -> None:
    """Raises ConfigError unless all golds of options are read one way and positions are known to count from 0."""
    if "position" not in readings:
        return
    doubt = "some are positions and some are not" if len(readings) > 1 else "they may be positions from 0 or from 1"
    if len(readings) > 1 or not any(row["gold"] == LETTERS[0] for row in read):
        raise ConfigError(
            f"{where}: golds in {columns.gold!r} are ambiguous, {doubt}: write letters instead (A, B, ...)"
        )


# One row


def read_problem(row: Row, columns: Columns, kind: Kind) -> tuple[dict[str, Any], str]:
    """Its problem, and for options how the gold was read."""
    kept = {column: row[column] for column in META if column in row}
    made: dict[str, Any] = {"row": dict(row), "question": question_of(row, columns.question), "id": "", **kept}
    if columns.id:
        made["id"] = id_of(row, columns.id)
    gold, reading = row.get(columns.gold) if columns.gold else "", ""
    if columns.gold and is_empty(gold):
        raise RowFault(f"no gold in {columns.gold!r}")
    if kind == "choice":
        options = options_of(row, columns.choices) if columns.choices else None
        place, reading = place_of(gold, options)
        made["gold"] = LETTERS[place]
        if options is not None:
            made["choices"] = options.texts
            lines = [f"({letter}) {text}" for letter, text in zip(LETTERS, options.texts, strict=False)]
            made["question"] = "\n".join([made["question"], *lines])
    else:
        made["gold"] = gold_of(gold, columns.gold, kind) if columns.gold else ""
    if kind == "code":
        made["tests"] = tests_of(row, columns.tests, made["question"])
        made["gold"] = program_of(made["gold"], made["tests"])
    return made, reading


def is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return not isinstance(value, list | dict) and not is_known(value)


def question_of(row: Row, column: str) -> str:
    if is_empty(value := row.get(column)):
        raise RowFault(f"no question in {column!r}")
    if not isinstance(value, str):
        raise RowFault(f"the question in {column!r} is not text but a {type(value).__name__}")
    return checked_text(value, column)


def id_of(row: Row, column: str) -> str:
    if is_empty(value := row.get(column)):
        raise RowFault(f"no id in {column!r}")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise RowFault(f"the id in {column!r} is neither text nor an integer but a {type(value).__name__}")
    return checked_text(str(value).strip(), column)


def gold_of(value: Any, column: str, kind: Kind) -> str:
    if isinstance(value, float) and math.isinf(value):
        raise RowFault(f"the gold in {column!r} is infinite")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str | int | float):  # a bool is an int
        return checked_text(str(value), column)
    if kind == "function":
        return checked_text(json.dumps(value, default=str, ensure_ascii=False), column)
    raise RowFault(f"the gold in {column!r} is neither text nor a number but a {type(value).__name__}")


def checked_text(text: str, column: str) -> str:
    """Without half characters, which no tokenizer or file takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowFault(f"{column!r} holds half of a character (a lone surrogate)") from error
    return text


# Options


class Options(NamedTuple):
    labels: list[str]
    texts: list[str]


def options_of(row: Row, columns: Sequence[str]) -> Options:
    """Of several columns, or of a list, {"text": [...], "label": [...]} as ARC has it or {"A": ...}, or their JSON."""
    shown = ", ".join(columns)
    if len(columns) > 1:
        listed: Any = [row.get(column) for column in columns]
    else:
        listed = json_or_text(row.get(columns[0]))
    labels: Any = list(LETTERS)
    if isinstance(listed, Mapping):
        is_arc = set(listed) == {"text", "label"}
        labels, listed = (listed["label"], listed["text"]) if is_arc else (list(listed), list(listed.values()))
    if not isinstance(listed, list | tuple) or not isinstance(labels, list | tuple):
        raise RowFault(f"{shown!r} is not a list of options")
    texts = ["" if is_empty(text) else str(text).strip() for text in listed]
    if not 2 <= len(texts) <= len(LETTERS):
        raise RowFault(f"{shown!r} has {len(texts)} options: there must be 2 to {len(LETTERS)}")
    if not all(texts):
        raise RowFault(f"an option in {shown!r} is empty")
    if len(set(texts)) < len(texts):
        raise RowFault(f"an option in {shown!r} is duplicated")
    return Options([str(label).strip() for label in labels][: len(texts)], texts)


def json_or_text(value: Any) -> Any:
    """A cell of a CSV may hold a list or an object as JSON."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def place_of(gold: Any, options: Options | None) -> tuple[int, str]:
    """Which option the gold is, and how it was read: by its label, its text or its position."""
    text = gold_of(gold, "gold", "choice").strip()
    letter = text.strip("(). ").upper()
    if options is None:
        if len(letter) != 1 or letter not in LETTERS:
            raise RowFault(f"gold {text!r:.40} is not a letter of an option (or name the column of the choices)")
        return LETTERS.index(letter), "label"
    by_label = [place for place, label in enumerate(options.labels) if label.upper() in (text.upper(), letter)]
    by_text = [place for place, option in enumerate(options.texts) if option == text]
    if by_label and by_text and by_label != by_text:
        raise RowFault(f"gold {text!r:.40} is the label of one option and the text of another")
    for places, reading in ((by_label, "label"), (by_text, "text")):
        if len(places) == 1:
            return places[0], reading
    if text.isascii() and text.isdigit() and int(text[:3]) < len(options.texts):
        return int(text[:3]), "position"
    raise RowFault(f"gold {text!r:.40} is not one of the {len(options.texts)} options")


# Programs


def tests_of(row: Row, columns: Sequence[str], question: str) -> dict[str, str]:
    """The fields of `code_tasks.Tests`: of code or asserts, or of cases with input and output."""
    column, entry = columns[0], row.get(columns[1]) if len(columns) > 1 else ""
    if is_empty(row.get(column)):
        raise RowFault(f"no tests in {column!r}")
    if len(columns) > 1 and (not isinstance(entry, str) or not entry.strip().isidentifier()):
        raise RowFault(f"the entry point in {columns[1]!r} is not the name of a function")
    entry, value = str(entry).strip(), json_or_text(row[column])
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        value = "\n".join(value)  # asserts, as MBPP has them
    if isinstance(value, str):
        entry = entry or tested_function(value, column)
        return {"entry": entry, "code": value, "prefix": question + "\n" if defines(question, entry) else ""}
    cases = cases_of(value)
    if not cases:
        raise RowFault(f"{column!r} holds neither Python tests nor cases with input and output")
    return {"entry": entry, "public": json.dumps(cases)}


def cases_of(value: Any) -> list[dict[str, str]]:
    """[{"input": ..., "output": ...}], or {"inputs": [...], "outputs": [...]}; [] if it is neither."""
    if isinstance(value, Mapping) and set(value) == {"inputs", "outputs"}:
        both = value["inputs"], value["outputs"]
        if not all(isinstance(texts, list) for texts in both) or len(both[0]) != len(both[1]):
            return []
        value = [{"input": given, "output": out} for given, out in zip(*both, strict=True)]
    return list(value) if isinstance(value, list) and all(map(is_case, value)) else []


def is_case(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("input", "output"))


def tested_function(code: str, column: str) -> str:
    """The one function that the tests call and neither they nor Python define."""
    tree = parsed(code)
    if tree is None:
        raise RowFault(f"the tests in {column!r} are not Python")
    nodes = list(ast.walk(tree))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    known = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)} | set(dir(builtins))
    known |= {argument.arg for node in nodes if isinstance(node, ast.FunctionDef) for argument in node.args.args}
    known |= {alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    if len(called - known) != 1:
        raise RowFault(f"the function that {column!r} tests is not known: name the column of its entry point too")
    return (called - known).pop()


def program_of(gold: str, tests: Mapping[str, str]) -> str:
    """A gold that is only the body of the function that the question begins, as a whole program."""
    prefix, entry = tests.get("prefix", ""), tests["entry"]
    if not gold.strip() or not prefix or defines(gold, entry):
        return gold
    bodies: list[Callable[[str], str]] = [str, "    {}".format]  # whose first line may have lost its indentation
    whole = (prefix + body(gold) for body in bodies)
    return next((program for program in whole if ends_in_function(program)), gold)


def defines(code: str, entry: str) -> bool:
    """Whether it is Python with a function of that name."""
    tree = parsed(code)
    return tree is not None and any(isinstance(node, ast.FunctionDef) and node.name == entry for node in tree.body)


def ends_in_function(code: str) -> bool:
    tree = parsed(code)
    return tree is not None and isinstance(tree.body[-1], ast.FunctionDef)


def parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
