"""The model's chat template: prompts of chat messages need one, and one that opens a think block must be known."""

from collections.abc import Mapping
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Task
from offleash.eval.verify.extract import CLOSE, OPEN


def check_chat_template(processor: Any, *tasks: Task) -> None:
    """Raise ConfigError for prompts of messages and a tokenizer or processor without a chat template."""
    if _template(processor):
        return
    for task in tasks:
        if any(not isinstance(problem.prompt, str) for problem in task.problems):
            raise ConfigError(
                f"the prompts of task {task.name!r} are chat messages, and the model has no chat template: use a model "
                "with one, or prompts of plain text (`chat: false` among the arguments of the task data)"
            )


def check_thinking(processor: Any, arguments: Mapping[str, Any] | None, *tasks: Task) -> None:
    """Raise ConfigError if the template opens a think block and a task looks for answers inside it.

    An answer in a thought that never ends would be paid and counted. `arguments` are those of the template.
    """
    if not _opens_think_block(processor, arguments or {}):
        return
    for task in tasks:
        chats = any(not isinstance(problem.prompt, str) for problem in task.problems)
        if chats and getattr(task, "thinking", None) is False:
            raise ConfigError(
                f"the model's chat template opens a think block, and task {task.name!r} would accept answers from a "
                "thought that never ends: add thinking: true to train_args and probe_args"
            )


def _opens_think_block(processor: Any, arguments: Mapping[str, Any]) -> bool:
    template = _template(processor)
    if isinstance(template, Mapping):  # several by name
        template = template.get("default")
    if OPEN not in str(template or ""):
        return False
    tokenizer, message = getattr(processor, "tokenizer", processor), {"role": "user", "content": "1 + 1?"}
    settings = {"chat_template": template, "add_generation_prompt": True, "tokenize": False, **arguments}
    prompt = tokenizer.apply_chat_template([message], **settings)
    return bool(prompt.rfind(OPEN) > prompt.rfind(CLOSE))


def _template(processor: Any) -> Any:
    inner = getattr(processor, "tokenizer", processor)
    return getattr(processor, "chat_template", None) or getattr(inner, "chat_template", None)
