"""What other tools write about their samples, each row as one or more records. Formats are told by their columns.

`offleash`   problem_id, completion and/or answer, correct; also index, status, truncated, tokens, logprob, ...
`lm-eval`    samples_*.jsonl: doc_id, resps, filtered_resps, target and a metric; one row per document and filter
`lighteval`  details_*.parquet: doc, model_response, metric (before 0.10: full_prompt, predictions, gold, metrics)
`verifiers`  results.jsonl: example_id, prompt, completion, answer (the gold), reward
"""

import ast
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Status, chat_text
from offleash.eval.tasks.loading import content_id

NUMBERS = ("logprob", "base_logprob", "entropy")
ROUNDING = 1e-4
COLUMNS = (
    "problem_id", "index", "completion", "answer", "correct", "status", "extracted_by", "step", "truncated", "tokens",
    *NUMBERS, "prompt", "question", "gold", "meta", "all_answers",
)  # fmt: skip


class BadRow(ValueError):
    """A row that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a format leaves open: which `filter` and `metric` (lm-eval, lighteval), from which score on it is correct.

    `verdicts` is False if a task judges the completions: then the file's own scores are not looked at.
    """

    filter: str = ""
    metric: str = ""
    threshold: float | None = None
    verdicts: bool = True


@dataclass(slots=True)
class Record:
    """One sample as a file tells it; None is unknown. `answered` says whether the file has an answer column at all."""

    problem_id: str
    index: int | None = None
    completion: str | None = None
    answer: str | None = None
    answered: bool = False
    correct: bool | None = None
    status: Status | None = None
    extracted_by: str = ""
    truncated: bool = False
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


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    columns: frozenset[str]
    records: Callable[[Mapping[str, Any], Reading], list[Record]]


def recognise(columns: set[str], where: str) -> Format:
    """The first format whose columns are all there."""
    for known in FORMATS:
        if known.columns <= columns:
            return known
    raise ConfigError(
        f"{where} has the columns {', '.join(sorted(columns)) or '(none)'}, which are those of no known format. Give "
        "problem_id, completion and/or answer, and correct; or samples of "
        + "; ".join(f"{known.name} ({', '.join(sorted(known.columns))})" for known in FORMATS[:-1])
    )


# Values


def text(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise BadRow(f"{name} must be text, got {type(value).__name__}")


def number(value: Any, name: str) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return None if value is None else float(value)
    raise BadRow(f"{name} must be a number, got {value!r:.40}")


def logprob(value: Any, name: str) -> float | None:
    """Of a whole sequence: finite, and above 0 only by rounding."""
    found = number(value, name)
    if found is not None and not (math.isfinite(found) and found <= ROUNDING):
        raise BadRow(
            f"{name} must be a log-probability (finite, at most 0; leave it out if unknown), got {value!r:.40}"
        )
    return found


def whole(value: Any, name: str, most: int = 2**31 - 1) -> int | None:
    if value is None:
        return None
    # The range comes first: NaN and Infinity fail it, and have no int.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most or value != int(value):
        raise BadRow(f"{name} must be a whole number from 0 on, got {value!r:.40}")
    return int(value)


def flag(value: Any, name: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise BadRow(f"{name} must be true or false, got {value!r:.40}")


def verdict(score: Any, name: str, reading: Reading) -> bool:
    """A score as a verdict: 0 and 1 speak for themselves, others need a threshold."""
    value = float(score) if isinstance(score, bool) else number(score, name)
    if value is None or value != value:
        raise BadRow(f"{name} is missing")
    if reading.threshold is not None:
        return value >= reading.threshold
    if value not in (0.0, 1.0):
        raise BadRow(f"{name} is {value:g}, neither 0 nor 1: say from where on it is correct with --threshold")
    return value == 1.0


def reply(value: Any) -> str | None:
    """A completion as text: text itself, or chat messages, of which the assistant's count."""
    if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        said = [dict(message) for message in value if message.get("role", "assistant") == "assistant"]
        return chat_text(said)
    return text(value, "completion")


def prompt_of(value: Any) -> str | list[dict[str, Any]] | None:
    """Text, or chat messages, which tables hold as JSON."""
    if isinstance(value, str) and value.startswith('[{"'):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        return [dict(message) for message in value]
    return text(value, "prompt")


def as_list(value: Any) -> list[Any]:
    """Tables of older lighteval versions hold lists as their Python spelling."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return [value]
    return list(value) if isinstance(value, list | tuple) else [value]


def meta_of(value: Any) -> dict[str, Any]:
    """An object, which tables hold as JSON."""
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRow(f"meta is no JSON ({str(error)[:80]})") from None
    return dict(as_mapping(value, "meta")) if value else {}


def answers_of(value: Any) -> list[str] | None:
    """All correct answers, each once."""
    if value is None:
        return None
    if not isinstance(value, list) or None in value:
        raise BadRow(f"all_answers must be a list of texts, got {value!r:.40}")
    listed = [text(answer, "each of all_answers") or "" for answer in value]
    if len(set(listed)) < len(listed):
        raise BadRow(f"all_answers must list each answer once, got {value!r:.40}")
    return listed


def as_mapping(value: Any, name: str) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise BadRow(f"{name} cannot be read") from None
    if not isinstance(value, Mapping):
        raise BadRow(f"{name} must be an object")
    return value


# Formats


def offleash(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    problem_id = text(row.get("problem_id"), "problem_id")
    if not problem_id:
        raise BadRow("problem_id is missing")
    status = row.get("status")
    if status is not None and status not in get_args(Status):
        raise BadRow(f"status must be one of {', '.join(get_args(Status))}, got {status!r:.40}")
    record = Record(
        problem_id,
        whole(row.get("index"), "index"),
        reply(row.get("completion")),
        text(row.get("answer"), "answer"),
        answered="answer" in row,
        correct=flag(row.get("correct"), "correct"),
        status=status,
        extracted_by=text(row.get("extracted_by", row.get("step")), "extracted_by") or "",
        truncated=bool(flag(row.get("truncated"), "truncated")) or status == "truncated",
        tokens=whole(row.get("tokens"), "tokens"),
        logprob=logprob(row.get("logprob"), "logprob"),
        base_logprob=logprob(row.get("base_logprob"), "base_logprob"),
        entropy=number(row.get("entropy"), "entropy"),
        prompt=prompt_of(row.get("prompt")),
        question=text(row.get("question"), "question") or "",
        gold=text(row.get("gold"), "gold"),
        meta=meta_of(row.get("meta")),
        all_answers=answers_of(row.get("all_answers")),
    )
    if record.completion is None and record.answer is None and record.correct is None:
        raise BadRow("has neither completion nor answer nor correct")
    return [record]


DESCRIBED = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash", "schema",
}  # fmt: skip


def lm_eval(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    chosen = str(row.get("filter") or "")
    if reading.filter and chosen != reading.filter:
        return []
    replies = [one for group in as_list(row["resps"]) for one in as_list(group)]
    if not replies or not all(isinstance(one, str) for one in replies):
        raise BadRow("resps are no completions (a likelihood task?)")
    answers = flat(row["filtered_resps"])
    scores = {name: row[name] for name in row.get("metrics") or sorted(set(row) - DESCRIBED) if name in row}
    correct = verdicts(scores, len(replies), reading)
    doc = row.get("doc")
    question = next((doc[key] for key in ("question", "problem") if key in doc), "") if isinstance(doc, Mapping) else ""
    return [
        Record(
            str(row["doc_id"]),
            completion=one,
            answer=answers[i] if len(answers) == len(replies) else None,
            answered=len(answers) == len(replies),
            correct=correct[i],
            prompt=first_argument(row.get("arguments")),
            question=str(question),
            gold=None if row.get("target") is None else str(row["target"]),
            filter=chosen,
        )
        for i, one in enumerate(replies)
    ]


def flat(filtered: Any) -> list[str | None]:
    """lm-eval's filtered answers, one per response; "[invalid]" is what its filters write for none."""
    items = [one for group in as_list(filtered) for one in (group if isinstance(group, list) else [group])]
    return [None if one is None or one == "[invalid]" else str(one) for one in items]


def first_argument(arguments: Any) -> str | list[dict[str, Any]] | None:
    """The prompt: arguments are {"gen_args_0": {"arg_0": prompt, ...}}, or [[prompt, settings]] in older files."""
    if isinstance(arguments, Mapping):
        group = next(iter(arguments.values()), None)
        found = group.get("arg_0") if isinstance(group, Mapping) else None
    else:
        found = arguments[0][0] if isinstance(arguments, list) and arguments and arguments[0] else None
    found = found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str) else found
    return prompt_of(found)


def verdicts(scores: Mapping[str, Any], n: int, reading: Reading) -> list[bool | None]:
    """Of n samples of one problem, from the scores a harness gives the problem."""
    if not reading.verdicts:
        return [None] * n
    scores = {name: value for name, value in scores.items() if isinstance(value, int | float | list)}
    if not reading.metric and len(scores) != 1:
        raise ConfigError(f"the file has {len(scores)} metrics ({', '.join(scores) or 'none'}): choose with --metric")
    name = reading.metric or next(iter(scores))
    if name not in scores:
        raise BadRow(f"has no metric {name!r}; it has {', '.join(scores) or 'none'}")
    values = scores[name] if isinstance(scores[name], list) else [scores[name]]
    if len(values) != n:
        raise BadRow(f"{n} completions share one {name}: name a --task that judges each")
    return [verdict(value, name, reading) for value in values]


def lighteval(row: Mapping[str, Any], reading: Reading) -> list[Record]:
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
    correct = verdicts(as_mapping(row["metric"], "metric"), len(replies), reading)
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


def old_lighteval(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    replies = [str(one) for one in as_list(row["predictions"])]
    correct = verdicts(as_mapping(row["metrics"], "metrics"), len(replies), reading)
    golds, query = as_list(row.get("gold")), str(row.get("example") or row["full_prompt"])
    gold = str(golds[0]).strip() if golds and golds[0] is not None else None
    problem_id = content_id("lighteval", query)
    prompt = str(row["full_prompt"])
    return [
        Record(problem_id, completion=one, correct=correct[i], prompt=prompt, question=query, gold=gold)
        for i, one in enumerate(replies)
    ]


def verifiers(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    usage, failed = row.get("token_usage"), row.get("error") is not None
    correct = verdict(row["reward"], "reward", reading) if reading.verdicts and not failed else None
    tokens = usage.get("output_tokens") if isinstance(usage, Mapping) else None
    return [
        Record(
            str(row["example_id"]),
            completion=reply(row["completion"]),
            correct=False if failed and reading.verdicts else correct,
            status="error" if failed else None,
            truncated=bool(row.get("is_truncated")),
            tokens=whole(tokens, "output_tokens"),
            prompt=prompt_of(row.get("prompt")),
            gold=text(row.get("answer"), "answer"),
        )
    ]


FORMATS = (
    Format("lm-eval", frozenset({"doc_id", "resps", "filtered_resps"}), lm_eval),
    Format("lighteval", frozenset({"doc", "model_response", "metric"}), lighteval),
    Format("lighteval (before 0.10)", frozenset({"full_prompt", "predictions", "metrics"}), old_lighteval),
    Format("verifiers", frozenset({"example_id", "completion", "reward"}), verifiers),
    Format("offleash", frozenset({"problem_id"}), offleash),
)
