"""Offleash's own columns: problem_id, completion and/or answer, correct; also index, status, truncated, tokens, ..."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from offleash.eval.convert.readers.record import Reading, Record
from offleash.eval.convert.readers.values import (
    BadRow,
    as_answers,
    as_bool,
    as_completion,
    as_integer,
    as_logprob,
    as_meta,
    as_number,
    as_prompt,
    as_text,
)
from offleash.eval.problem import Status

COLUMNS = frozenset({"problem_id"})
KNOWN = {item.name for item in fields(Record)} - {"answered", "filter", "judged_by", "key", "kind", "file", "line"}


def native_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    problem_id = as_text(row.get("problem_id"), "problem_id")
    if not problem_id:
        raise BadRow("problem_id is missing")
    status = row.get("status")
    if status is not None and status not in get_args(Status):
        raise BadRow(f"status must be one of {', '.join(get_args(Status))}, got {status!r:.40}")
    step = row.get("step")
    # Text in `step` is the former name of `extracted_by`.
    former = step if isinstance(step, str) else None
    record = Record(
        problem_id,
        as_integer(row.get("index"), "index"),
        as_completion(row.get("completion")),
        as_text(row.get("answer"), "answer"),
        as_text(row.get("spelling"), "spelling"),
        answered="answer" in row,
        correct=as_bool(row.get("correct"), "correct"),
        status=status,
        extracted_by=as_text(row.get("extracted_by", former), "extracted_by") or "",
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
        step=None if former is not None else as_integer(step, "step"),
    )
    if record.completion is None and record.answer is None and record.correct is None:
        raise BadRow("has neither completion nor answer nor correct")
    return [record]
