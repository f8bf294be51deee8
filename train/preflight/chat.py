"""Prompts of chat messages need a model with a chat template."""

from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Task


def check_chat_template(processor: Any, *tasks: Task) -> None:
    """Raise ConfigError for prompts of messages and a tokenizer or processor without a chat template."""
    inner = getattr(processor, "tokenizer", processor)
    if getattr(processor, "chat_template", None) or getattr(inner, "chat_template", None):
        return
    for task in tasks:
        if any(not isinstance(problem.prompt, str) for problem in task.problems):
            raise ConfigError(
                f"the prompts of task {task.name!r} are chat messages, and the model has no chat template: use a model "
                "with one, or prompts of plain text (`chat: false` among the arguments of the task data)"
            )
