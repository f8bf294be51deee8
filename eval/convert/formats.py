"""The files of other systems: a table of formats, each recognized by its columns, and the rows of a file one by one.

What each system writes, and how a row becomes samples, is said in its file in `readers/`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offleash.eval.convert.readers import (
    inspect_samples,
    lighteval_details,
    lm_eval_samples,
    native_rows,
    skyrl_evals,
    trl_completions,
    verifiers_traces,
    verl_generations,
)
from offleash.eval.convert.readers.inspect_archive import inspect_rows, inspect_settings
from offleash.eval.convert.readers.record import Reading, Record
from offleash.eval.convert.readers.values import BadRow
from offleash.eval.errors import ConfigError

SHOWN = 10
GROUP_BYTES, BATCH_BYTES = 1_000_000_000, 500_000_000
"""Of a parquet file: unpacked in one row group and column, and decoded at once."""
LINE_BYTES = 200_000_000
"""The longest line of a JSONL file."""
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: the columns that identify it and how a row becomes records.

    `options` are its names for --format. `step_in` finds the training step in a path where rows have none, `settings`
    the model and how it was sampled; `continues` says that a row goes on where the row before it ended, and `answers`
    that the rows have answers of their own.
    """

    name: str
    options: tuple[str, ...]
    columns: frozenset[str]
    records: Callable[[Mapping[str, Any], Reading], list[Record]]
    step_in: re.Pattern[str] | None = None
    settings: Callable[[Path], dict[str, Any]] | None = None
    continues: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] | None = None
    answers: bool = False

    def step_of(self, path: Path) -> int | None:
        """The training step that the path names, the last one if there are several."""
        found = self.step_in.findall(path.resolve().as_posix()) if self.step_in else []
        return int(found[-1]) if found else None


FORMATS = (
    Format("verl", ("verl",), verl_generations.COLUMNS, verl_generations.verl_records),
    Format(
        "verifiers traces",
        ("prime-rl", "verifiers"),
        verifiers_traces.COLUMNS,
        verifiers_traces.trace_records,
        step_in=re.compile(r"/rollouts/step_(\d{1,9})/"),
    ),
    Format(
        "verifiers",
        ("verifiers",),
        verifiers_traces.FORMER_COLUMNS,
        verifiers_traces.former_verifiers_records,
    ),
    Format(
        "skyrl",
        ("skyrl",),
        skyrl_evals.COLUMNS,
        skyrl_evals.skyrl_records,
        step_in=re.compile(r"/global_step_(\d{1,9})_evals/"),
        continues=skyrl_evals.is_next_turn,
    ),
    Format("trl", ("trl",), trl_completions.COLUMNS, trl_completions.trl_records),
    Format(
        "inspect",
        ("inspect",),
        inspect_samples.COLUMNS,
        inspect_samples.inspect_records,
        settings=inspect_settings,
        answers=True,
    ),
    Format("lm-eval", ("lm-eval",), lm_eval_samples.COLUMNS, lm_eval_samples.lm_eval_records, answers=True),
    Format(
        "lighteval",
        ("lighteval",),
        lighteval_details.COLUMNS,
        lighteval_details.lighteval_records,
        answers=True,
    ),
    Format(
        "lighteval (before 0.10)",
        ("lighteval",),
        lighteval_details.FORMER_COLUMNS,
        lighteval_details.former_lighteval_records,
        answers=True,
    ),
    Format("offleash", ("jsonl",), native_rows.COLUMNS, native_rows.native_records, answers=True),
)
OPTIONS = (AUTO, *dict.fromkeys(option for known in FORMATS for option in known.options))


def recognize(columns: set[str], where: str, option: str = AUTO) -> Format:
    """The only format, of those that `option` names, whose columns are all present."""
    asked = [known for known in FORMATS if option in (AUTO, *known.options)]
    if not asked:
        raise ConfigError(f"unknown format {option!r}: use one of {', '.join(OPTIONS)}")
    matching = [known for known in asked if known.columns <= columns]
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(sorted(columns)) or "(none)"
    if matching:
        raise ConfigError(
            f"{where} could be {' or '.join(known.name for known in matching)}, by its columns {listed}: choose one "
            f"with --format ({', '.join(option for known in matching for option in known.options)})"
        )
    known_columns = "; ".join(f"{known.name} ({', '.join(sorted(known.columns))})" for known in asked)
    if option != AUTO:
        raise ConfigError(f"{where} has the columns {listed}, not those of --format {option}: {known_columns}")
    raise ConfigError(
        f"{where} has the columns {listed}, which match no known format. Give problem_id, completion and/or answer, "
        f"and correct; or samples of {known_columns}"
    )


def numbered_rows(path: Path, end: int | None = None) -> Iterator[tuple[int, Any]]:
    """(line, row): a dictionary, or a BadRow if the line is not JSON. Blank lines are skipped.

    JSONL, parquet, an inspect log or a dataset folder, by content. Of JSONL, only the first `end` bytes if it is given.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path} is a pipe or a device, and samples are read twice: save them to a file first")
    try:
        if path.is_dir():
            yield from _dataset_rows(path)
        elif is_parquet(path):
            with pq.ParquetFile(path) as file:
                batches = (batch.to_pylist() for batch in file.iter_batches(_batch_rows(file, path)))
                yield from enumerate((row for batch in batches for row in batch), 1)
        elif is_archive(path):
            for number, row in inspect_rows(path):
                yield number, BadRow(f"is not JSON ({str(row)[:80]})") if isinstance(row, Exception) else row
        else:
            yield from _json_rows(path, end)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet" or _starts_with(path, b"PAR1")


def is_archive(path: Path) -> bool:
    return path.suffix == ".eval" or _starts_with(path, b"PK\x03\x04")


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _dataset_rows(path: Path) -> Iterator[tuple[int, Any]]:
    if not (path / "state.json").is_file():
        raise ConfigError(f"{path} is a folder but not a dataset that was saved to disk: name the files in it")
    import datasets

    yield from enumerate(datasets.load_from_disk(str(path)), 1)


def _batch_rows(file: pq.ParquetFile, path: Path) -> int:
    """As many rows as fit into memory even if each repeats the largest value that the file can hold.

    A column can name one value of a gigabyte in each of a million rows, in a file of a few kilobytes.
    """
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    columns = [group.column(j).total_uncompressed_size for group in groups for j in range(group.num_columns)]
    largest = max(columns, default=0)
    if largest > GROUP_BYTES:
        raise ConfigError(
            f"{path} has a column with {largest / 1e9:.1f} GB in one row group, more than {GROUP_BYTES / 1e9:g} GB: "
            "write it with smaller row groups"
        )
    return max(1, min(4096, BATCH_BYTES // max(largest, 1)))


def _json_rows(path: Path, end: int | None) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        line = 0
        while (end is None or file.tell() < end) and (content := file.readline(LINE_BYTES + 1)):
            line += 1
            if len(content) > LINE_BYTES:
                raise ConfigError(f"{path}: line {line} is longer than {LINE_BYTES:,} bytes: give one sample per line")
            if content.strip():
                yield line, _parsed(content)


def _parsed(content: bytes) -> Any:
    if content.strip() in (b"{", b"["):
        return BadRow(
            "starts a JSON value of several lines: give one object per line "
            "(a log of inspect in JSON: inspect log convert FILE --to eval --output-dir DIR)"
        )
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        return BadRow(f"is not JSON ({str(error)[:80]})")


def check_lines(path: Path, bad: Sequence[tuple[int, str]], rows: int) -> None:
    """Raises ConfigError that lists the first of the bad lines, if there are any."""
    if bad:
        listed = "; ".join(f"line {line} {reason}" for line, reason in sorted(bad)[:SHOWN])
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise ConfigError(f"{path}: {len(bad)} of {rows} lines are invalid: {listed}{more}")
