"""What a task is: problems, how an answer is found in a completion, and how it is verified."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Status = Literal["ok", "no_answer", "truncated", "timeout", "error"]
Part = dict[str, Any]
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its reference answer.

    `prompt` is plain text or chat messages (images as data URLs), `gold` the reference answer as the task writes it,
    and `meta` whatever else the task or a report wants to know.

    >>> from offleash.eval import Problem
    >>> problem = Problem("sum-1", [{"role": "user", "content": "What is 2 + 2?"}], gold="4", meta={"level": 1})
    >>> problem.id, problem.gold
    ('sum-1', '4')
    """

    id: str
    prompt: str | Messages
    gold: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a task says about one completion.

    `answer` is the canonical form of the answer, the same for all spellings of it, and None if none was found.
    `status` is "ok" whenever an answer was judged, right or wrong. "timeout" is wrong as well: the answer used up the
    verifier's time or memory, which suffice for the gold. "error" is a failure of the verifier and never means "wrong";
    `message` says what happened. `extracted_by` names the extraction rule that found the answer ("" if none did).
    `spelling` is how the answer was written, where a task tells several spellings of one answer apart.

    >>> from offleash.eval import load_task
    >>> task = load_task("countdown", split="probe", n=1)
    >>> verdict = task.verify(task.problems, ["no idea"])[0]
    >>> verdict.correct, verdict.answer, verdict.status, verdict.failed
    (False, None, 'no_answer', False)
    """

    answer: str | None
    correct: bool
    status: Status
    extracted_by: str = ""
    message: str = ""
    spelling: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the verifier failed, which says nothing about the completion."""
        return self.status == "error"


class Task(Protocol):
    """A named set of problems and their verifier: the protocol that a task of your own follows.

    `version` changes whenever a verdict could: it is part of every pool's fingerprint. Put the class in a module that
    can be imported, and name it `my_module:Parity` wherever a task is named.

    >>> from offleash.eval import Problem, Verdict
    >>> class Parity:
    ...     name, version = "parity", "1"
    ...     problems = [Problem(str(n), f"Is {n} even or odd?", "even" if n % 2 == 0 else "odd") for n in range(8)]
    ...
    ...     def verify(self, problems, completions, truncated=None):
    ...         words = [text.lower().split()[-1] for text in completions]
    ...         return [Verdict(word, word == p.gold, "ok") for p, word in zip(problems, words, strict=True)]
    ...
    ...     def correct_answers(self, problem):
    ...         return (problem.gold,)
    >>> task = Parity()
    >>> [verdict.correct for verdict in task.verify(task.problems[:2], ["It is even", "It is even"])]
    [True, False]
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


@runtime_checkable
class RewardedTask(Protocol):
    """A task that a reward function judges: what it has beyond `Task`.

    Of a rollout of several turns the reward may depend on more than a text, on an environment say: it is taken while
    the rollout is at hand, and cannot be taken again from a stored completion.
    """

    correct: Callable[..., Any]
    """Called as TRL calls a reward function."""

    def verdict(self, reward: float | None, completion: str, truncated: bool) -> Verdict:
        """What a reward of a completion means; None: the reward does not apply."""
        ...


def content_parts(content: Any) -> Iterator[Part]:
    """A message's content as typed parts; text is one part, and missing content is empty text.

    A dataset gives every part the keys of all the others, with None in them: those are dropped.
    """
    if not isinstance(content, list):
        content = ["" if content is None else content]
    for part in content:
        is_part = isinstance(part, Mapping)
        yield {k: v for k, v in part.items() if v is not None} if is_part else {"type": "text", "text": str(part)}


def chat_text(
    chat: str | Messages,
    *,
    between: str = "",
    between_parts: str = "",
    roles: bool = False,
    other: Callable[[Part], str] = lambda part: f"[{part['type']}]",
) -> str:
    """A prompt or a completion as text, whether it is plain text or chat messages.

    `between` joins messages and `between_parts` the parts of one; `roles` puts the speaker before each message, and
    `other` renders a part that is not text, such as an image.

    >>> chat_text([{"role": "user", "content": "What is"}, {"role": "user", "content": "2 + 2?"}], between=" ")
    'What is 2 + 2?'
    """
    if isinstance(chat, str):
        return chat
    texts = []
    for message in chat:
        parts = content_parts(message.get("content"))
        shown = (str(part["text"]) if part.get("type", "text") == "text" else other(part) for part in parts)
        texts.append((f"{message.get('role', '')}: " if roles else "") + between_parts.join(shown))
    return between.join(texts)


def cut_text(text: str, limit: int) -> str:
    """A long text without its middle: the start and the end matter most."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def prompt_key(prompt: str | Messages) -> str:
    """A prompt as a dictionary key, whether it is plain text or chat messages."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
