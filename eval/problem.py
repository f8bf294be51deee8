"""What a task is: problems, how an answer is found in a completion, and how it is verified."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Status = Literal["ok", "no_answer", "truncated", "timeout", "error"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One question. `prompt` is plain text or chat messages; `gold` is the reference answer as the task writes it."""

    id: str
    prompt: str | list[dict[str, Any]]
    gold: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one completion.

    `answer` is the canonical answer class, None if no answer was found. `status` is "ok" whenever an answer was judged,
    right or wrong; "timeout" and "error" are failures of the verifier and never mean "wrong". `step` names the
    extraction step that found the answer ("" if none did).
    """

    answer: str | None
    correct: bool
    status: Status
    step: str = ""

    @property
    def failed(self) -> bool:
        """Whether the verifier failed, which says nothing about the completion."""
        return self.status in ("timeout", "error")


class Task(Protocol):
    """A named set of problems and their verifier.

    `version` changes whenever a verdict could: it is part of every pool's fingerprint.
    """

    name: str
    version: str
    problems: Sequence[Problem]

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        """One verdict per (problem, completion) pair; `truncated` says which completions hit the length limit."""
        ...

    def correct_answers(self, problem: Problem) -> tuple[str, ...] | None:
        """All correct answer classes, where they can be listed; None means one unit per problem, the gold answer."""
        ...


def completion_text(completion: str | list[dict[str, Any]]) -> str:
    """The text of a completion, be it plain text or chat messages (as TRL hands them over)."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


def prompt_key(prompt: str | list[dict[str, Any]]) -> str:
    """A prompt as a dictionary key, be it plain text or chat messages."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
