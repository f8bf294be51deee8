"""Training must not see a probe problem: support on problems that were trained on is meaningless."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Messages, Task, chat_text, prompt_key


def check_dataset_contamination(dataset: Any, task: Task) -> None:
    """Raise ConfigError if a probe problem is among the dataset's prompts."""
    if "prompt" not in (getattr(dataset, "column_names", None) or []) or not hasattr(dataset, "__len__"):
        say("offleash: WARNING: a streaming dataset cannot be searched for probe problems: make sure it contains none")
        return
    check_contamination(dataset["prompt"], task)


def check_row_contamination(dataset: Any, rows: Sequence[Mapping[str, Any]], task: Task) -> None:
    """The same where an environment makes a problem of all of a row: prompts may be equal. Ids are not compared."""
    if not hasattr(dataset, "__len__"):
        check_dataset_contamination(dataset, task)
        return
    trained = {_row_key(row) for row in dataset}
    shared = [problem.id for problem, row in zip(task.problems, rows, strict=True) if _row_key(row) in trained]
    _check_none(shared, task)


def _row_key(row: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in row.items() if name not in ("id", "problem_id") and value is not None}
    return json.dumps(kept, sort_keys=True, default=str)


def check_contamination(prompts: Iterable[str | list[dict[str, Any]]], task: Task) -> None:
    """Raise ConfigError if a probe problem is among the prompts; system messages and white space are ignored.

    Ids are not compared: two files may use the same row numbers.
    """
    prompts = list(prompts)
    keys, questions = set(map(prompt_key, prompts)), set(map(_question, prompts))
    # A last message that several probe problems share ("Continue.") identifies none of them.
    contexts = Counter(_question(prompt) for prompt in {prompt_key(p.prompt): p.prompt for p in task.problems}.values())
    shared = [
        problem.id
        for problem in task.problems
        if prompt_key(problem.prompt) in keys
        or (contexts[question := _question(problem.prompt)] == 1 and question in questions)
    ]
    _check_none(shared, task)


def _check_none(shared: Sequence[str], task: Task) -> None:
    if shared:
        raise ConfigError(
            f"{len(shared)} of {len(task.problems)} probe problems are among the training problems "
            f"({', '.join(shared[:3])}{', ...' if len(shared) > 3 else ''}): support on problems seen in training is "
            "meaningless. Take the probe problems from another split"
        )


def _question(prompt: str | Messages) -> str:
    """The plain prompt or the last user message, its white space collapsed; images as they are."""
    if not isinstance(prompt, str):
        said = [message for message in prompt if message["role"] == "user" and message["content"]]
        as_json = partial(json.dumps, sort_keys=True, default=str)
        prompt = chat_text(said[-1:], between_parts=" ", other=as_json) or prompt_key(prompt)
    return " ".join(prompt.split())
