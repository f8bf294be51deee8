"""The record that every reader makes: one sample of one problem, and which of its scores says whether it is correct."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offleash.eval.convert.readers.values import BadRow, as_completion, as_number, as_text
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Status, chat_text
from offleash.eval.tasks.loading import content_id

Prompt = str | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Choices that a file leaves open.

    `filter` is a filter of lm-eval, or an agent of verifiers; `correct` names the score, reward or metric that is the
    verdict, `threshold` the lowest correct value of it, and `answer` the column with the answers. `verdicts` is False
    if a task verifies the completions: the scores in the file are then ignored.
    """

    filter: str = ""
    correct: str = ""
    threshold: float | None = None
    verdicts: bool = True
    answer: str = ""

    def __post_init__(self) -> None:
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise ConfigError(f"the threshold must be a finite number, got {self.threshold}")


@dataclass(slots=True)
class Record:
    """One sample as found in a file; None is unknown. `answered` says whether the file has a column of answers.

    `step` is the training step, `judged_by` the score that `correct` was read from, `key` an id that only this sample
    has, and `kind` what must not be mixed: rollouts for training and for evaluation, or two models. `file` and `line`
    say where the record was found.
    """

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
    prompt: Prompt | None = None
    question: str = ""
    gold: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    all_answers: list[str] | None = None
    step: int | None = None
    filter: str = ""
    judged_by: str = ""
    key: str = ""
    kind: str = ""
    file: int = 0
    line: int = 0


def chosen_score(scores: Mapping[str, Any], reading: Reading, default: str = "") -> str:
    """The name of the score that is the verdict: the one asked for, the default of the system, or the only one."""
    if reading.correct and reading.correct not in scores:
        raise BadRow(f"has no score {reading.correct!r}; it has {', '.join(scores) or 'none'}")
    if reading.correct or default in scores:
        return reading.correct or default
    if len(scores) != 1:
        raise ConfigError(
            f"the file has {len(scores)} scores ({', '.join(scores) or 'none'}): choose the one that says whether a "
            "sample is correct with --correct" + ("" if scores else ", or name a --task that verifies the completions")
        )
    return next(iter(scores))


def verdict(score: Any, name: str, reading: Reading) -> bool:
    """A score as a verdict; scores other than 0 and 1 need a threshold."""
    value = float(score) if isinstance(score, bool) else as_number(score, name)
    if value is None or math.isnan(value):
        raise BadRow(f"{name} is missing")
    if reading.threshold is not None:
        return value >= reading.threshold
    if value not in (0.0, 1.0):
        raise BadRow(f"{name} is {value:g}, neither 0 nor 1: give the lowest correct score with --threshold")
    return value == 1.0


def judged(scores: Mapping[str, Any], reading: Reading, default: str = "") -> tuple[bool | None, str]:
    """(correct, the score that says so); nothing if a task verifies the completions."""
    if not reading.verdicts:
        return None, ""
    name = chosen_score(scores, reading, default)
    return verdict(scores[name], name, reading), name


def verdicts_of_many(scores: Mapping[str, Any], n: int, reading: Reading) -> tuple[list[bool | None], str]:
    """The same for n samples of one problem, from the scores that a harness gives the problem."""
    if not reading.verdicts:
        return [None] * n, ""
    scores = {name: value for name, value in scores.items() if isinstance(value, int | float | list)}
    name = chosen_score(scores, reading)
    values = scores[name] if isinstance(scores[name], list) else [scores[name]]
    if len(values) != n:
        raise BadRow(f"{n} completions share one {name}: name a --task to verify each of them")
    return [verdict(value, name, reading) for value in values], name


def numeric(row: Mapping[str, Any], without: frozenset[str]) -> dict[str, Any]:
    """The columns that can be a score: numbers, booleans and missing values."""
    return {
        name: value
        for name, value in row.items()
        if name not in without and (value is None or isinstance(value, bool | int | float))
    }


def given_answer(columns: Mapping[str, Any], reading: Reading) -> tuple[str | None, bool]:
    """(answer, whether the file has answers): from the column that --answer names, otherwise unknown."""
    if not reading.answer:
        return None, False
    if reading.answer not in columns:
        raise BadRow(f"has no column {reading.answer!r} for answers; it has {', '.join(columns) or 'none'}")
    found = as_text(columns[reading.answer], reading.answer)
    return (None if found is None or found.lower() in ("", "[invalid]") else found), True


def generation(
    row: Mapping[str, Any],
    prompt_column: str,
    completion_column: str,
    verdict_of: tuple[bool | None, str],
    *,
    source: str = "prompt",
    **more: Any,
) -> Record:
    """The record of a row of a trainer without ids: a problem is the hash of its prompt."""
    prompt = given_prompt(row[prompt_column], prompt_column)
    completion = as_completion(row[completion_column])
    if completion is None:
        raise BadRow(f"{completion_column} is missing")
    correct, judged_by = verdict_of
    return Record(
        prompt_id(prompt, source),
        completion=completion,
        correct=correct,
        judged_by=judged_by,
        prompt=prompt,
        question=question_of(prompt),
        **more,
    )


def given_prompt(value: Any, name: str) -> Prompt:
    """Text as it is, or chat messages without their empty fields, which tables add."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(message, Mapping) for message in value):
        return [{key: item for key, item in message.items() if item is not None} for message in value]
    raise BadRow(f"{name} must be text or chat messages, got {value!r:.40}")


def prompt_id(prompt: Prompt, source: str = "prompt") -> str:
    """The id of a problem that has none: a hash of its prompt."""
    if isinstance(prompt, str):
        return content_id(source, prompt)
    return content_id(source, "messages", json.dumps(prompt, sort_keys=True, default=str))


def question_of(prompt: Prompt) -> str:
    """What was asked last, by which a task finds its problem."""
    if isinstance(prompt, str):
        return prompt
    asked = [message for message in prompt if message.get("role") == "user"]
    return chat_text(asked[-1:])


def gold_text(value: Any) -> str | None:
    """A gold answer as text; of another type, as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
