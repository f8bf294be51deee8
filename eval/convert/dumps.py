"""One file of another system as records, also while the system is still writing it."""

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from offleash.eval.convert.formats import (
    AUTO,
    Format,
    check_lines,
    is_archive,
    is_parquet,
    numbered_rows,
    recognize,
)
from offleash.eval.convert.readers import native_rows
from offleash.eval.convert.readers.record import Reading, Record
from offleash.eval.convert.readers.values import BadRow
from offleash.eval.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Dump:
    """What a file holds so far: its format (None before the first row), its samples in their order, the bytes read,
    and whether nothing is left over. `is_whole` does not mean that the writer is done: it may add a line later.
    """

    format: Format | None
    records: list[Record]
    end: int
    is_whole: bool

    @property
    def steps(self) -> list[int | None]:
        """The training steps that the samples are of, ascending; None for unknown."""
        return sorted({record.step for record in self.records}, key=lambda step: (step is not None, step or 0))


def read_dump(path: Path, reading: Reading | None = None, *, option: str = AUTO) -> Dump:
    """The samples of a file that may still grow: its complete lines so far.

    A last line without its line break is left for the next call, and a parquet file or a log of inspect that is not
    complete has no samples yet; neither is an error. A complete line that is invalid is one: it will not get better.
    `option` is a format of `FORMATS`, or "auto". Every record names its problem, completion, verdict and step, and
    `reading` chooses the score that is the verdict, as the flags of `offleash import` do. To make a pool of what is
    complete now, pass `end` on: `import_samples(path, pool, ends={path: dump.end})`.

    Raises ConfigError that lists the invalid lines.
    """
    end, is_whole = complete_part(path)
    if not is_whole and (is_parquet(path) or is_archive(path)):
        return Dump(None, [], 0, False)
    form, records, _ = read_records(path, reading or Reading(), option, end)
    return Dump(form, records, end, is_whole)


def complete_part(path: Path) -> tuple[int, bool]:
    """(bytes up to the last complete line, whether nothing follows); for other formats, the whole file or nothing."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a regular file: only files can be read while they grow")
    try:
        size = path.stat().st_size
        if is_archive(path):
            is_whole = zipfile.is_zipfile(path)
            return (size if is_whole else 0), is_whole
        with path.open("rb") as file:
            if is_parquet(path):
                file.seek(max(0, size - 4))
                is_whole = size >= 12 and file.read(4) == b"PAR1"
                return (size if is_whole else 0), is_whole
            end = size
            while end > 0:
                start = max(0, end - 65_536)
                file.seek(start)
                if (found := file.read(end - start).rfind(b"\n")) >= 0:
                    return start + found + 1, start + found + 1 == size
                end = start
            return 0, size == 0
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or os.strerror(error.errno or 0)}") from error


def read_records(
    path: Path,
    reading: Reading,
    option: str = AUTO,
    end: int | None = None,
    keep: Callable[[Record], Record] = lambda record: record,
) -> tuple[Format | None, list[Record], set[str]]:
    """The format, the records as `keep` returns them, and the columns that are ignored.

    Raises ConfigError that lists the invalid lines.
    """
    form: Format | None = None
    records: list[Record] = []
    bad: list[tuple[int, str]] = []
    ignored: set[str] = set()
    before: dict[str, object] = {}
    step: int | None = None
    rows = 0
    for line, row in numbered_rows(path, end):
        rows += 1
        if not isinstance(row, dict):
            bad.append((line, str(row) if isinstance(row, BadRow) else "is not a JSON object"))
            continue
        if form is None:
            form = recognize(set(row), f"{path}, line {line},", option)
            step = form.step_of(path)
        try:
            records += [keep(record) for record in records_of_row(form, row, reading, line, step)]
        except BadRow as error:
            bad.append((line, str(error)))
        except ConfigError as error:
            raise ConfigError(f"{path} ({form.name}): {error}") from error
        if form.continues is not None:
            if form.continues(before, row):
                bad.append((line, "continues the conversation of the line before: a line per turn is not a sample"))
            before = row
        if form.columns == native_rows.COLUMNS:
            ignored |= row.keys() - native_rows.KNOWN
    check_lines(path, bad, rows)
    return form, records, ignored


def records_of_row(form: Format, row: dict[str, object], reading: Reading, line: int, step: int | None) -> list[Record]:
    """The records of one row, with their line, and `step` where the row names none. Raises BadRow."""
    if missing := sorted(form.columns - row.keys()):
        raise BadRow(f"has no {', '.join(missing)}")
    try:
        records = form.records(row, reading)
    except (BadRow, ConfigError):
        raise
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError, AttributeError) as error:
        raise BadRow(f"cannot be read as {form.name} ({type(error).__name__}: {str(error)[:80]})") from error
    for record in records:
        record.line = line
        if record.step is None:
            record.step = step
    return records
