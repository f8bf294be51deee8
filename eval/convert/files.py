"""The files of an import, read twice.

The first time everything but the completions is kept, each distinct text once; the second time completions are given
out group by group. So memory holds a few hundred bytes for each row, however long the completions and prompts are.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offleash.eval.convert.dumps import read_records, records_of_row
from offleash.eval.convert.formats import Format, check_lines, numbered_rows
from offleash.eval.convert.readers.record import Reading, Record
from offleash.eval.errors import ConfigError
from offleash.eval.groups import bounded_groups
from offleash.eval.problem import Task

PART_ROWS, PART_CHARS = 100_000, 200_000_000
"""The most that is verified and written at once."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the first reading of the files found; `records` are without the text of their completions."""

    paths: tuple[Path, ...]
    ends: Mapping[Path, int]
    form: Format
    reading: Reading
    records: list[Record]
    ignored: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.paths[0]) if len(self.paths) == 1 else f"{self.paths[0]} and {len(self.paths) - 1} more"

    def check(self, bad: Sequence[tuple[Record, str]], rows: int) -> None:
        """Raises ConfigError that lists the bad lines of the first file that has any."""
        if bad:
            file = min(record.file for record, _ in bad)
            check_lines(self.paths[file], [(one.line, why) for one, why in bad if one.file == file], rows)


def read_files(
    paths: Path | Sequence[Path],
    reading: Reading | None,
    task: Task | None,
    option: str,
    ends: Mapping[Path, int] | None,
) -> Found:
    """Read the files a first time."""
    paths = (paths,) if isinstance(paths, Path) else tuple(paths)
    _check_paths(paths)
    reading = replace(reading or Reading(), verdicts=task is None)
    shared = _Shared()
    forms: dict[Path, Format] = {}
    records: list[Record] = []
    ignored: set[str] = set()
    for number, path in enumerate(paths):
        form, some, unused = read_records(path, reading, option, (ends or {}).get(path), shared.slimmed)
        if form is None:
            raise ConfigError(f"{path} has no samples")
        forms[path] = form
        for record in some:
            record.file = number
        records += some
        ignored |= unused
    form = next(iter(forms.values()))
    if other := next((path for path, its in forms.items() if its is not form), None):
        raise ConfigError(f"{paths[0]} is {form.name} and {other} is {forms[other].name}: import one format at a time")
    found = Found(paths, ends or {}, form, reading, records, tuple(sorted(ignored)))
    _check_choices(found)
    return found


def _check_paths(paths: Sequence[Path]) -> None:
    if not paths:
        raise ConfigError("no file to import: name at least one")
    counts = Counter(path.resolve() for path in paths)
    if repeated := next((path for path in paths if counts[path.resolve()] > 1), None):
        raise ConfigError(f"{repeated} is given twice: its samples would count twice")


def _check_choices(found: Found) -> None:
    """Raises ConfigError if the files leave something open, or have nothing of what was chosen."""
    reading, records = found.reading, found.records
    if reading.answer and found.form.answers:
        raise ConfigError(f"--answer is for files without answers of their own, and {found.form.name} files have them")
    if not records:
        of_filter = f" of filter {reading.filter!r}" if reading.filter else ""
        raise ConfigError(f"{found.name} has no samples{of_filter}")
    filters = sorted({record.filter for record in records if record.filter})
    if len(filters) > 1:
        raise ConfigError(f"{found.name} has {len(filters)} filters ({', '.join(filters)}): choose one with --filter")
    names = sorted({record.judged_by for record in records if record.judged_by})
    if len(names) > 1:
        raise ConfigError(f"{found.name} is judged by {' and '.join(names)} in different lines: choose with --correct")


def of_step(found: Found, step: int | None) -> list[Record]:
    """The records of one training step: the one asked for, or the only one."""
    steps = sorted({record.step for record in found.records}, key=lambda one: (one is not None, one or 0))
    listed = ", ".join("unknown" if one is None else str(one) for one in steps[:20]) + (
        ", ..." if len(steps) > 20 else ""
    )
    if step is None and len(steps) > 1:
        raise ConfigError(
            f"{found.name} has samples of {len(steps)} training steps ({listed}): choose one with --step, or make a "
            "pool of each with --steps all"
        )
    if step is not None and step not in steps:
        raise ConfigError(f"{found.name} has no samples of step {step}; it has {listed}")
    return found.records if step is None else [record for record in found.records if record.step == step]


def check_kinds(found: Found, records: Sequence[Record]) -> None:
    kinds = sorted({record.kind for record in records})
    if len(kinds) > 1:
        raise ConfigError(f"{found.name} mixes {' and '.join(kind or 'unknown' for kind in kinds)}: import them apart")


class _Shared:
    """Equal values of different rows as one object."""

    def __init__(self) -> None:
        self.known: dict[tuple[type, str], Any] = {}

    def slimmed(self, record: Record) -> Record:
        """Without the text of its completion: "" stands for any."""
        for name in (
            "problem_id",
            "answer",
            "spelling",
            "extracted_by",
            "prompt",
            "question",
            "gold",
            "judged_by",
            "kind",
            "filter",
            "meta",
            "all_answers",
        ):
            setattr(record, name, self._one(getattr(record, name)))
        record.completion = None if record.completion is None else ""
        return record

    def _one(self, value: Any) -> Any:
        if not value:
            return value
        key = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        return self.known.setdefault((type(value), key), value)


def with_completions(found: Found, records: Sequence[Record], step: int | None) -> Iterator[Sequence[Record]]:
    """The records with their completions, read again, in groups of bounded size."""
    by_file: dict[int, list[Record]] = {}
    for record in records:
        by_file.setdefault(record.file, []).append(record)
    complete = (
        replace(record, completion=again.completion)
        for number, expected in by_file.items()
        for record, again in _read_again(found, found.paths[number], expected, step)
    )
    return bounded_groups(complete, lambda record: record.completion, PART_ROWS, PART_CHARS)


def _read_again(
    found: Found, path: Path, expected: Sequence[Record], step: int | None
) -> Iterator[tuple[Record, Record]]:
    """Each record of a file as it was and as it is now. Raises ConfigError if the file changed."""
    place, of_path = 0, found.form.step_of(path)
    for line, row in numbered_rows(path, found.ends.get(path)):
        changed = ConfigError(f"{path} changed while it was read, at line {line}: import it again")
        if not isinstance(row, dict):
            raise changed
        for again in records_of_row(found.form, row, found.reading, line, of_path):
            if again.step != step:
                continue
            if place == len(expected) or expected[place].line != line:
                raise changed
            yield expected[place], again
            place += 1
    if place < len(expected):
        raise ConfigError(f"{path} changed while it was read: it ends before line {expected[place].line}")
