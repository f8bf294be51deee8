"""Nothing that trains may see a probe problem: support on problems that were trained on says nothing."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Messages, Part, Task, chat_text, prompt_key


def refuse_overlap(dataset: Any, task: Task) -> None:
    """Raise ConfigError if a probe problem is among the dataset's prompts."""
    if "prompt" not in (getattr(dataset, "column_names", None) or []) or not hasattr(dataset, "__len__"):
        print(
            "offleash: WARNING: a streamed dataset cannot be searched for probe problems; make sure it has none of them"
        )
        return
    refuse_shared(dataset["prompt"], task)


def refuse_shared(prompts: Iterable[str | list[dict[str, Any]]], task: Task) -> None:
    """Raise ConfigError if a probe problem is among the prompts, under whatever system message and however spaced.

    Ids are not compared: two files may number their rows alike.
    """
    prompts = list(prompts)
    whole, asked = set(map(prompt_key, prompts)), set(map(_question, prompts))
    # What is said last in several probe problems ("Continue.") names none of them.
    contexts = Counter(_question(prompt) for prompt in {prompt_key(p.prompt): p.prompt for p in task.problems}.values())
    both = [
        problem.id
        for problem in task.problems
        if prompt_key(problem.prompt) in whole
        or (contexts[question := _question(problem.prompt)] == 1 and question in asked)
    ]
    if both:
        raise ConfigError(
            f"{len(both)} of {len(task.problems)} probe problems are among the training problems ({', '.join(both[:3])}"
            f"{', ...' if len(both) > 3 else ''}): support on problems that were trained on says nothing. "
            "Take the probe problems from another split"
        )


def _question(prompt: str | Messages) -> str:
    """The plain prompt or the last user message, its white space collapsed; images as they are."""
    if not isinstance(prompt, str):
        said = [message for message in prompt if message["role"] == "user" and message["content"]]
        prompt = chat_text(said[-1:], between_parts=" ", other=_as_json) or prompt_key(prompt)
    return " ".join(prompt.split())


def _as_json(part: Part) -> str:
    return json.dumps(part, sort_keys=True, default=str)
