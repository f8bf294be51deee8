"""Reading samples from other tools' files: each row becomes one or more records. A format is recognized by its columns.

`offleash`   problem_id, completion and/or answer, correct; also index, status, truncated, tokens, logprob, ...
`lm-eval`    samples_*.jsonl: doc_id, resps, filtered_resps, target and a metric; one row per document and filter
`lighteval`  details_*.parquet: doc, model_response, metric (before 0.10: full_prompt, predictions, gold, metrics)
`verifiers`  results.jsonl: example_id, prompt, completion, answer (the gold), reward
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from offleash.eval.convert.values import (
    BadRow,
    as_answers,
    as_bool,
    as_completion,
    as_integer,
    as_list,
    as_logprob,
    as_mapping,
    as_meta,
    as_number,
    as_prompt,
    as_text,
)
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Status
from offleash.eval.tasks.loading import content_id

SHOWN = 10
GROUP_BYTES, BATCH_BYTES = 1_000_000_000, 500_000_000
"""Of a parquet file: unpacked in one row group and column, and decoded at once."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Choices that a file leaves open: `filter` and `metric` (lm-eval, lighteval), and the lowest correct score.

    `verdicts` is False if a task verifies the completions: the scores in the file are then ignored.
    """

    filter: str = ""
    metric: str = ""
    threshold: float | None = None
    verdicts: bool = True


@dataclass(slots=True)
class Record:
    """One sample as found in a file; None is unknown. `answered` says whether the file has a column of answers."""

    problem_id: str
    index: int | None = None
    completion: str | None = None
    answer: str | None = None
    spelling: str | None = None
    answered: bool = False
    correct: bool | None = None
    status: Status | None = None
    extracted_by: str = ""
    truncated: bool | None = None
    tokens: int | None = None
    logprob: float | None = None
    base_logprob: float | None = None
    entropy: float | None = None
    prompt: str | list[dict[str, Any]] | None = None
    question: str = ""
    gold: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    all_answers: list[str] | None = None
    filter: str = ""
    line: int = 0


COLUMNS = {item.name for item in fields(Record)} - {"answered", "filter", "line"} | {"step"}
"""Of our own format; `step` is the former name of `extracted_by`."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: the columns that identify it and how a row becomes records."""

    name: str
    columns: frozenset[str]
    records: Callable[[Mapping[str, Any], Reading], list[Record]]


def recognize(columns: set[str], where: str) -> Format:
    """The first format whose columns are all present."""
    for known in FORMATS:
        if known.columns <= columns:
            return known
    raise ConfigError(
        f"{where} has the columns {', '.join(sorted(columns)) or '(none)'}, which match no known format. Give "
        "problem_id, completion and/or answer, and correct; or samples of "
        + "; ".join(f"{known.name} ({', '.join(sorted(known.columns))})" for known in FORMATS[:-1])
    )


def _verdict(score: Any, name: str, reading: Reading) -> bool:
    """A score as a verdict; scores other than 0 and 1 need a threshold."""
    value = float(score) if isinstance(score, bool) else as_number(score, name)
    if value is None or value != value:
        raise BadRow(f"{name} is missing")
    if reading.threshold is not None:
        return value >= reading.threshold
    if value not in (0.0, 1.0):
        raise BadRow(f"{name} is {value:g}, neither 0 nor 1: give the lowest correct score with --threshold")
    return value == 1.0


def _offleash(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    problem_id = as_text(row.get("problem_id"), "problem_id")
    if not problem_id:
        raise BadRow("problem_id is missing")
    status = row.get("status")
    if status is not None and status not in get_args(Status):
        raise BadRow(f"status must be one of {', '.join(get_args(Status))}, got {status!r:.40}")
    record = Record(
        problem_id,
        as_integer(row.get("index"), "index"),
        as_completion(row.get("completion")),
        as_text(row.get("answer"), "answer"),
        as_text(row.get("spelling"), "spelling"),
        answered="answer" in row,
        correct=as_bool(row.get("correct"), "correct"),
        status=status,
        extracted_by=as_text(row.get("extracted_by", row.get("step")), "extracted_by") or "",
        truncated=status == "truncated" or as_bool(row.get("truncated"), "truncated"),
        tokens=as_integer(row.get("tokens"), "tokens"),
        logprob=as_logprob(row.get("logprob"), "logprob"),
        base_logprob=as_logprob(row.get("base_logprob"), "base_logprob"),
        entropy=as_number(row.get("entropy"), "entropy"),
        prompt=as_prompt(row.get("prompt")),
        question=as_text(row.get("question"), "question") or "",
        gold=as_text(row.get("gold"), "gold"),
        meta=as_meta(row.get("meta")),
        all_answers=as_answers(row.get("all_answers")),
    )
    if record.completion is None and record.answer is None and record.correct is None:
        raise BadRow("has neither completion nor answer nor correct")
    return [record]


_DESCRIBED = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash", "schema",
}  # fmt: skip


def _lm_eval(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    chosen = str(row.get("filter") or "")
    if reading.filter and chosen != reading.filter:
        return []
    replies = [one for group in as_list(row["resps"]) for one in as_list(group)]
    if not replies or not all(isinstance(one, str) for one in replies):
        raise BadRow("resps are not completions (a likelihood task?)")
    answers = _flat(row["filtered_resps"])
    scores = {name: row[name] for name in row.get("metrics") or sorted(set(row) - _DESCRIBED) if name in row}
    correct = _verdicts(scores, len(replies), reading)
    doc = row.get("doc")
    question = next((doc[key] for key in ("question", "problem") if key in doc), "") if isinstance(doc, Mapping) else ""
    return [
        Record(
            str(row["doc_id"]),
            completion=one,
            answer=answers[i] if len(answers) == len(replies) else None,
            answered=len(answers) == len(replies),
            correct=correct[i],
            prompt=_first_argument(row.get("arguments")),
            question=str(question),
            gold=None if row.get("target") is None else str(row["target"]),
            filter=chosen,
        )
        for i, one in enumerate(replies)
    ]


def _flat(filtered: Any) -> list[str | None]:
    """lm-eval's filtered answers, one per response; its filters write "[invalid]" where they find none."""
    items = [one for group in as_list(filtered) for one in (group if isinstance(group, list) else [group])]
    return [None if one is None or one == "[invalid]" else str(one) for one in items]


def _first_argument(arguments: Any) -> str | list[dict[str, Any]] | None:
    """The prompt. Arguments are {"gen_args_0": {"arg_0": prompt, ...}}, or [[prompt, settings]] in older files."""
    if isinstance(arguments, Mapping):
        group = next(iter(arguments.values()), None)
        found = group.get("arg_0") if isinstance(group, Mapping) else None
    else:
        found = arguments[0][0] if isinstance(arguments, list) and arguments and arguments[0] else None
    found = found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str) else found
    return as_prompt(found)


def _verdicts(scores: Mapping[str, Any], n: int, reading: Reading) -> list[bool | None]:
    """The verdicts of n samples of one problem, from the scores that a harness gives the problem."""
    if not reading.verdicts:
        return [None] * n
    scores = {name: value for name, value in scores.items() if isinstance(value, int | float | list)}
    if not reading.metric and len(scores) != 1:
        raise ConfigError(
            f"the file has {len(scores)} metrics ({', '.join(scores) or 'none'}): choose one with --metric"
        )
    name = reading.metric or next(iter(scores))
    if name not in scores:
        raise BadRow(f"has no metric {name!r}; it has {', '.join(scores) or 'none'}")
    values = scores[name] if isinstance(scores[name], list) else [scores[name]]
    if len(values) != n:
        raise BadRow(f"{n} completions share one {name}: name a --task to verify each of them")
    return [_verdict(value, name, reading) for value in values]


def _lighteval(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    doc, response = as_mapping(row["doc"], "doc"), as_mapping(row["model_response"], "model_response")
    replies = [one for one in as_list(response.get("text")) if isinstance(one, str)]
    if not replies:
        raise BadRow("model_response has no text (a likelihood task?)")
    query, choices = str(doc.get("query") or ""), doc.get("choices") or []
    if not isinstance(choices, list):
        raise BadRow(f"choices must be a list, got {choices!r:.40}")
    place = next(iter(as_list(doc.get("gold_index"))), None)
    gold = str(choices[place]).strip() if isinstance(place, int) and 0 <= place < len(choices) else None
    tokens = [len(one) for one in response.get("output_tokens") or [] if isinstance(one, list)]
    correct = _verdicts(as_mapping(row["metric"], "metric"), len(replies), reading)
    problem_id = str(doc["id"]) if doc.get("id") not in (None, "") else content_id("lighteval", query)
    return [
        Record(
            problem_id,
            completion=one,
            correct=correct[i],
            tokens=tokens[i] if len(tokens) == len(replies) else None,
            prompt=query,
            question=query,
            gold=gold,
        )
        for i, one in enumerate(replies)
    ]


def _old_lighteval(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    replies = [str(one) for one in as_list(row["predictions"])]
    correct = _verdicts(as_mapping(row["metrics"], "metrics"), len(replies), reading)
    golds, query = as_list(row.get("gold")), str(row.get("example") or row["full_prompt"])
    gold = str(golds[0]).strip() if golds and golds[0] is not None else None
    problem_id = content_id("lighteval", query)
    prompt = str(row["full_prompt"])
    return [
        Record(problem_id, completion=one, correct=correct[i], prompt=prompt, question=query, gold=gold)
        for i, one in enumerate(replies)
    ]


def _verifiers(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    usage, failed = row.get("token_usage"), row.get("error") is not None
    correct = _verdict(row["reward"], "reward", reading) if reading.verdicts and not failed else None
    tokens = usage.get("output_tokens") if isinstance(usage, Mapping) else None
    return [
        Record(
            str(row["example_id"]),
            completion=as_completion(row["completion"]),
            correct=False if failed and reading.verdicts else correct,
            status="error" if failed else None,
            truncated=bool(row["is_truncated"]) if "is_truncated" in row else None,
            tokens=as_integer(tokens, "output_tokens"),
            prompt=as_prompt(row.get("prompt")),
            gold=as_text(row.get("answer"), "answer"),
        )
    ]


FORMATS = (
    Format("lm-eval", frozenset({"doc_id", "resps", "filtered_resps"}), _lm_eval),
    Format("lighteval", frozenset({"doc", "model_response", "metric"}), _lighteval),
    Format("lighteval (before 0.10)", frozenset({"full_prompt", "predictions", "metrics"}), _old_lighteval),
    Format("verifiers", frozenset({"example_id", "completion", "reward"}), _verifiers),
    Format("offleash", frozenset({"problem_id"}), _offleash),
)


def numbered_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line, row): a dictionary, or a BadRow if the line is not JSON. Blank lines are skipped."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path} is a pipe or a device, and samples are read twice: save them to a file first")
    try:
        if path.is_dir():
            import datasets

            yield from enumerate(datasets.load_from_disk(str(path)), 1)
        elif path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                batches = (batch.to_pylist() for batch in file.iter_batches(_batch_rows(file, path)))
                yield from enumerate((row for batch in batches for row in batch), 1)
        else:
            yield from _json_rows(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


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


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for line, content in enumerate(file, 1):
            if not content.strip():
                continue
            try:
                yield line, json.loads(content)
            except (ValueError, RecursionError) as error:
                yield line, BadRow(f"is not JSON ({str(error)[:80]})")


def check_lines(path: Path, bad: Sequence[tuple[int, str]], rows: int) -> None:
    """Raises ConfigError that lists the first of the bad lines, if there are any."""
    if bad:
        listed = "; ".join(f"line {line} {reason}" for line, reason in sorted(bad)[:SHOWN])
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise ConfigError(f"{path}: {len(bad)} of {rows} lines are invalid: {listed}{more}")
