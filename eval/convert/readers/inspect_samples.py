"""inspect_ai: a sample of a `.eval` log. Its epoch is its index among the samples of its problem.

Scores are named by their scorer, those of a scorer with several values `scorer/name`. "C", "I", "P" and "N" are 1, 0,
0.5 and 0 as in inspect's own accuracy. A sample that failed, or that its scorer could not score (NaN), has status
"error".
"""

import math
from collections.abc import Mapping
from typing import Any

from offleash.eval.convert.readers.inspect_archive import settings_of
from offleash.eval.convert.readers.record import (
    Reading,
    Record,
    chosen_score,
    given_prompt,
    question_of,
    verdict,
)
from offleash.eval.convert.readers.values import (
    BadRow,
    as_completion,
    as_integer,
    as_items,
    as_logprob,
    as_object,
    as_text,
)
from offleash.eval.problem import Status

COLUMNS = frozenset({"id", "epoch", "input", "target", "output", "scores", "eval"})
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_ATTACHED = "attachment://"


def inspect_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    epoch = as_integer(row["epoch"], "epoch")
    if row["id"] is None or not epoch:
        raise BadRow("has no id or no epoch")
    if row.get("invalidation") is not None:
        raise BadRow("was invalidated: run it again with inspect eval-retry")
    about = as_object(row["eval"], "eval")
    output = as_object(row["output"] or {}, "output")
    choice = as_object(next(iter(as_items(output.get("choices"), "choices")), {}), "choices")
    prompt = given_prompt(_resolved(row["input"], row.get("attachments") or {}), "input")
    target = row["target"]
    correct, status, answer, judged_by = _judged(row, reading)
    tokens, logprob = _measured(choice, output)
    return [
        Record(
            str(row["id"]),
            epoch - 1,
            _completion(output, choice),
            answer=answer,
            answered=answer is not None,
            correct=correct,
            status=status,
            judged_by=judged_by,
            truncated=row.get("limit") is not None or choice.get("stop_reason") in ("max_tokens", "model_length"),
            tokens=tokens,
            logprob=logprob,
            prompt=prompt,
            question=question_of(prompt),
            gold=", ".join(map(str, target)) if isinstance(target, list) else as_text(target, "target"),
            key=str(row.get("uuid") or ""),
            kind=_kind(about),
        )
    ]


def _kind(about: Mapping[str, Any]) -> str:
    """Logs of one task, one model and one way of sampling can be added up, no others."""
    return ", ".join([str(about.get("task")), *(f"{name} {value}" for name, value in settings_of(about).items())])


def _judged(row: Mapping[str, Any], reading: Reading) -> tuple[bool | None, Status | None, str | None, str]:
    """(correct, status, answer, the score that says so)."""
    if row.get("error") is not None:
        return (False if reading.verdicts else None), "error", None, ""
    if not reading.verdicts:
        return None, None, None, ""
    scores = as_object(row["scores"] or {}, "scores")
    values = _values(scores)
    name = chosen_score(values, reading)
    scorer = name if name in scores else name.rpartition("/")[0]
    answer = as_text(as_object(scores[scorer], "score").get("answer"), "answer")
    value = values[name]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False, "error", None, name
    is_silent = name in scores and as_object(scores[name], "score").get("value") == "N"
    return verdict(value, name, reading), "no_answer" if is_silent else None, answer, name


def _values(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Every number that a scorer gave, by name."""
    found: dict[str, Any] = {}
    for scorer, score in scores.items():
        value = as_object(score, "score").get("value")
        if isinstance(value, Mapping):
            found |= {f"{scorer}/{name}": _number(one, scorer) for name, one in value.items()}
        else:
            found[scorer] = _number(value, scorer)
    return found


def _number(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return value
    if value in _LETTERS or value.lower() in _LETTERS:
        return _LETTERS.get(value, _LETTERS.get(value.lower()))
    try:
        return float(value)
    except ValueError:
        raise BadRow(f"{name} is {value!r:.40}, which is not a score that inspect counts") from None


def _completion(output: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
    """What the model said last; tool calls and reasoning are not part of it."""
    given = output.get("completion")
    if isinstance(given, str) and given:
        return given
    message = as_object(choice.get("message") or {}, "message")
    content = message.get("content") or ""
    if isinstance(content, list):
        content = [part for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
    return as_completion([{"role": "assistant", "content": content}]) or ""


def _measured(choice: Mapping[str, Any], output: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """(tokens, log-probability) of the last completion, where they were recorded."""
    usage = output.get("usage")
    tokens = as_integer(usage.get("output_tokens"), "output_tokens") if isinstance(usage, Mapping) else None
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list) or not content:
        return tokens, None
    each = [as_logprob(as_object(one, "logprobs").get("logprob"), "logprob") for one in content]
    return len(each), None if None in each else sum(one or 0.0 for one in each)


def _resolved(value: Any, attachments: Mapping[str, Any]) -> Any:
    """The input with its attachments put back; of messages, speaker and content only: ids differ between epochs."""
    if isinstance(value, str):
        held = attachments.get(value.removeprefix(_ATTACHED)) if value.startswith(_ATTACHED) else None
        return held if isinstance(held, str) else value
    if not isinstance(value, list):
        return value
    messages = [as_object(message, "each message of input") for message in value]
    return [
        {"role": message.get("role", "user"), "content": _content(message.get("content"), attachments)}
        for message in messages
    ]


def _content(content: Any, attachments: Mapping[str, Any]) -> Any:
    if not isinstance(content, list):
        return _resolved(content, attachments)
    parts = [as_object(part, "each part of a message") for part in content]
    return [
        {
            name: _resolved(one, attachments) if isinstance(one, str) else one
            for name, one in part.items()
            if one is not None
        }
        for part in parts
    ]
