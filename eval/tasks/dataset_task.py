"""A task from a dataset and a reward function, both as TRL takes them."""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from offleash.eval.code_fingerprint import verifier_fingerprint
from offleash.eval.errors import ConfigError, VerifyError, first_line
from offleash.eval.images import as_parts, data_url, has_images, with_pictures
from offleash.eval.problem import Messages, Problem, Verdict, content_parts, prompt_key
from offleash.eval.tasks.math_tasks import NUMBER_STEPS
from offleash.eval.verify.extract import Step, extract, rest
from offleash.eval.verify.math_answers.answers import answer_class
from offleash.eval.verify.reward_call import GIVEN, Reward, call_reward, check_reward_function, reward_name
from offleash.eval.verify.verdicts import verdicts_of

Row = Mapping[str, Any]
Answer = Callable[[str], str | None]

CASCADE: tuple[Step, ...] = (*NUMBER_STEPS, ("whole", rest))
"""Where an answer is looked for: a box, an answer tag, a closing phrase, the last number, all of a short text."""
VERDICTS = "1"  # bump with every change here that could change a verdict
IDS = ("id", "problem_id")
PICTURES = ("image", "images")
_SPLITS = "choose one of its splits"
_TAKE = "take as many rows as you want to sample, list(dataset.take(64))"


def find_answer(completion: str) -> tuple[str | None, str]:
    """The class of the answer that the cascade finds in a completion, and the rule that found it."""
    found = extract(completion, CASCADE)
    return (None if found.answer is None else answer_class(found.answer)), found.extracted_by


class DatasetTask:
    """A Task from what a GRPOTrainer is given: a dataset and a reward function.

    Args:
        dataset: a `datasets.Dataset`, or a sequence of rows, with a column `prompt` (text or chat messages) and the
            columns that the reward reads; pictures in `image`, `images` or the messages.
        correct: the reward function, called as TRL calls it. None means "not applicable", which is never "wrong".
        threshold: a completion is correct from this reward on. May be left out where rewards are 0 and 1: any other
            reward is then refused.
        answer: from a completion's text to the class of its answer, None if it has none. By default boxes, answer tags,
            closing phrases and last numbers are looked for, and equal values are one class. False: answers are not told
            apart, and what is made of them (answer entropy) is left out.
        answers: the column with all correct answer classes of a problem, or a function of the row. Each is a unit.
            Without it a problem is one unit, and the answers that a function `answer` tells apart are counted beside
            it, as spellings.
        name: of the task, in folders and reports.
        version: of the verifier, instead of the fingerprint of the code of `correct` and `answer`.
        gold: the column with the reference answer, for reports.
        ids: the column with the problems' ids; by default `id` or `problem_id`, or a hash of the prompt.
        loop: the event loop that runs an async function; by default one on a thread of its own.

    A recipe names a class: derive one from `DatasetTask` whose constructor calls this one with your rows.

    >>> from offleash.eval import task_from_dataset
    >>> rows = [{"prompt": "What is 2 + 2?", "answer": "4"}, {"prompt": "What is 2 + 3?", "answer": "5"}]
    >>> def correct(completions, answer, **columns):
    ...     return [float(text.endswith(gold)) for text, gold in zip(completions, answer)]
    >>> task = task_from_dataset(rows, correct, gold="answer")
    >>> [verdict.correct for verdict in task.verify(task.problems, ["It is 4", "It is 4"])]
    [True, False]
    >>> task.train_dataset.column_names, task.reward_funcs == [correct]
    (['prompt', 'answer'], True)
    """

    def __init__(
        self,
        dataset: Any,
        correct: Reward,
        *,
        threshold: float | None = None,
        answer: Answer | Literal[False] | None = None,
        answers: str | Callable[[Row], Sequence[str]] | None = None,
        name: str = "dataset",
        version: str | None = None,
        gold: str | None = None,
        ids: str | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        check_reward_function(correct)
        _check_settings(name, threshold, answer)
        self.name, self.correct, self.threshold, self.loop = name, correct, threshold, loop
        self.answer = answer
        self.verified_by = reward_name(correct)
        self._dataset, rows = dataset, _rows(dataset, name)
        named = [column for column in (gold, ids, answers) if isinstance(column, str)]
        _check_columns(rows, named, name)
        prompts = [_prompt(row, number, name) for number, row in enumerate(rows)]
        problem_ids = _ids(rows, prompts, ids, name)
        self.problems: Sequence[Problem] = [
            Problem(problem_id, prompt, "" if gold is None else str(row[gold]))
            for problem_id, prompt, row in zip(problem_ids, prompts, rows, strict=True)
        ]
        self._rows: dict[str, Row] = dict(zip(problem_ids, rows, strict=True))
        self._answers: dict[str, tuple[str, ...]] = {}
        if answers is not None:
            self._answers = {i: _listed(row, answers, i, name) for i, row in self._rows.items()}
        self.version = self._version(version, rows, answers)

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        return verdicts_of(self._verify, problems, completions, truncated)

    def correct_answers(self, problem: Problem) -> tuple[str, ...] | None:
        return self._answers.get(problem.id)

    @property
    def train_dataset(self) -> Any:
        """For TRL: the dataset as it was given, or the rows as one."""
        from datasets import Dataset

        return self._dataset if isinstance(self._dataset, Dataset) else Dataset.from_list([*map(dict, self._dataset)])

    @property
    def reward_funcs(self) -> list[Reward]:
        """For TRL."""
        return [self.correct]

    def _verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        rows = [self._row(problem) for problem in problems]
        columns = {key: [row.get(key) for row in rows] for key in rows[0] if key not in GIVEN}
        prompts = [_as_called(problem, row) for problem, row in zip(problems, rows, strict=True)]
        rewards = call_reward(self.correct, prompts, completions, columns, self.loop)
        flags = [False] * len(completions) if truncated is None else truncated
        return [self.verdict(*one) for one in zip(rewards, completions, flags, strict=True)]

    def _row(self, problem: Problem) -> Row:
        if problem.id not in self._rows:
            raise ConfigError(f"task {self.name!r} has no problem {problem.id!r}: it was made from another dataset")
        return self._rows[problem.id]

    def verdict(self, reward: float | None, completion: str, truncated: bool) -> Verdict:
        """What a reward of a completion means. None: the reward does not apply."""
        if reward is None:
            return Verdict(None, False, "error", message="it returned None: the reward does not apply")
        if self.threshold is None and reward not in (0, 1):
            raise ConfigError(
                f"{self.verified_by} returned a reward of {reward:g}: where rewards are not 0 and 1, say from which on "
                "a completion is correct, threshold=..."
            )
        right = reward >= (1 if self.threshold is None else self.threshold)
        if self.answer is False:
            return Verdict(None, right, "truncated" if truncated and not right else "ok")
        found, rule = self._found(completion)
        if found is None and not right:
            return Verdict(None, False, "truncated" if truncated else "no_answer")
        spelling = found if callable(self.answer) and not self._answers else None
        return Verdict(found, right, "ok", rule, spelling=spelling)

    def _found(self, completion: str) -> tuple[str | None, str]:
        """The class of a completion's answer, and the rule that found it."""
        if not callable(self.answer):
            return find_answer(completion)
        try:
            named = self.answer(completion)
        except Exception as error:  # whatever a user's code raises, with the name of the function
            name = reward_name(self.answer)
            raise RuntimeError(f"{name} raised {type(error).__name__}: {first_line(error)}") from error
        if named is not None and not isinstance(named, str):
            what = f"{named!r:.60} ({type(named).__name__})"
            raise VerifyError(f"{reward_name(self.answer)} returned {what} as an answer: it must be text, or None")
        return named, "" if named is None else reward_name(self.answer)

    def _version(self, version: str | None, rows: Sequence[Row], answers: Any) -> str:
        """The code, and everything else that a verdict depends on: the columns too, which hold the golds."""
        codes = [one for one in (self.correct, self.answer, answers) if callable(one)]
        code = version if version is not None else _digest("".join(map(verifier_fingerprint, codes)))
        kinds = [self.threshold, self.answer is False, answers if isinstance(answers, str) else None]
        columns = [{key: value for key, value in row.items() if key not in ("prompt", *PICTURES)} for row in rows]
        content = json.dumps([VERDICTS, kinds, columns], sort_keys=True, default=_jsonable)
        return f"reward-{code}-{_digest(content)}"


task_from_dataset = DatasetTask
"""The class by what it does."""


def _check_settings(name: str, threshold: float | None, answer: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"the name of a task is part of folder names: letters, digits, -, _ and ., got {name!r}")
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool) and threshold == threshold
    if threshold is not None and not is_number:
        raise ConfigError(f"threshold must be a number, got {threshold!r}")
    if answer is not None and answer is not False and not callable(answer):
        raise ConfigError(f"answer must be a function from text to an answer class, False or None, got {answer!r:.60}")


def _rows(dataset: Any, name: str) -> list[Row]:
    """The rows, checked for a prompt in each."""
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping):
        raise ConfigError(f"task {name!r}: a {kind} has several datasets ({', '.join(map(str, dataset))}): {_SPLITS}")
    if isinstance(dataset, str):
        raise ConfigError(f"task {name!r}: {dataset!r:.60} is a name, not a dataset: load it, or load_task it, first")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(f"task {name!r}: a {kind} has no fixed rows that could be sampled again and again: {_TAKE}")
    rows = [dataset[number] for number in range(len(dataset))]
    if not rows:
        raise ConfigError(f"task {name!r}: the dataset is empty; it must have at least one row")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or "prompt" not in row:
            has = f"has {', '.join(map(str, row))}" if isinstance(row, Mapping) else f"is a {type(row).__name__}"
            raise ConfigError(f"task {name!r}: row {number} has no column 'prompt', as TRL needs it: it {has}")
    return rows


def _check_columns(rows: Sequence[Row], columns: Sequence[str], name: str) -> None:
    for column in columns:
        for number, row in enumerate(rows):
            if row.get(column) is None:
                has = ", ".join(map(str, row))
                raise ConfigError(f"task {name!r}: row {number} has nothing in the column {column!r}; it has {has}")


def _ids(rows: Sequence[Row], prompts: Sequence[str | Messages], column: str | None, name: str) -> list[str]:
    chosen = column or next((known for known in IDS if all(row.get(known) is not None for row in rows)), None)
    if chosen is None:
        found = [_digest(prompt_key(prompt)) for prompt in prompts]
    else:
        found = [str(row[chosen]) for row in rows]
    first: dict[str, int] = {}
    for number, problem_id in enumerate(found):
        if problem_id in first:
            what = "prompt" if chosen is None else f"{chosen} {problem_id!r}"
            raise ConfigError(
                f"task {name!r}: rows {first[problem_id]} and {number} have the same {what}: remove one of them"
                + ("" if chosen else ", or give each row an id in a column id")
            )
        first[problem_id] = number
    return found


def _plain(prompt: Any) -> Any:
    """Pictures in messages as data URLs."""
    if isinstance(prompt, str):
        return prompt
    return [
        {**message, "content": [_shown(part) for part in content_parts(message.get("content"))]}
        if isinstance(message.get("content"), list)
        else message
        for message in prompt
    ]


def _shown(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image" or part.get("image") is None:
        return part
    return {"type": "image_url", "image_url": {"url": data_url(part["image"])}}


def _pictures(row: Row) -> list[Any]:
    single, several = row.get("image"), row.get("images")
    return list(several) if several is not None else [single] if single is not None else []


def _prompt(row: Row, number: int, name: str) -> str | Messages:
    """The prompt with its pictures in it, where TRL puts them: at image parts, or before the first user message."""
    prompt, pictures = row["prompt"], [{"type": "image", "image": picture} for picture in _pictures(row)]
    where = f"task {name!r}: row {number}"
    if isinstance(prompt, str):
        if pictures:
            raise ConfigError(f"{where} has pictures beside a prompt of plain text: write it as chat messages")
        return prompt
    if (
        not isinstance(prompt, Sequence)
        or not all(isinstance(m, Mapping) and "role" in m for m in prompt)
        or not prompt
    ):
        raise ConfigError(f"{where}: prompt must be text or chat messages, got {prompt!r:.60}")
    if not pictures:
        return [dict(message) for message in _plain(prompt)]
    messages: Messages = [{**message, "content": [*content_parts(message.get("content"))]} for message in prompt]
    holes = [part for m in messages for part in m["content"] if part.get("type") == "image" and "image" not in part]
    if not holes:
        asked = next((message for message in messages if message["role"] == "user"), None)
        if asked is None:
            raise ConfigError(f"{where} has pictures and no message of the user to show them in")
        asked["content"] = [*pictures, *asked["content"]]
    elif len(holes) == len(pictures):
        for hole, picture in zip(holes, pictures, strict=True):
            hole.update(picture)
    else:
        raise ConfigError(f"{where} has {len(pictures)} pictures for {len(holes)} image parts in its prompt")
    shown: Messages = _plain(messages)
    return shown


def _as_called(problem: Problem, row: Row) -> str | Messages:
    """The prompt that TRL gives to a reward."""
    prompt: str | Messages = as_parts(with_pictures(problem.prompt)) if has_images(problem) else row["prompt"]
    return prompt


def _listed(row: Row, answers: str | Callable[[Row], Sequence[str]], problem_id: str, name: str) -> tuple[str, ...]:
    listed = row[answers] if isinstance(answers, str) else answers(row)
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not all(isinstance(one, str) for one in listed):
        raise ConfigError(
            f"task {name!r}: answers of problem {problem_id!r} must be a list of texts, got {listed!r:.60}"
        )
    return tuple(dict.fromkeys(listed))


def _jsonable(value: Any) -> Any:
    """What is not JSON in a column: arrays, dates and bytes by their content."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise ConfigError(
        f"a column holds a {type(value).__name__}, whose content cannot be fingerprinted: keep text, numbers and "
        "lists in the dataset"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
