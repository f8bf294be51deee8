"""Prompts with images are not trained on: TRL is given a tokenizer and no processor.

The chat template would write placeholders into the prompt, and the model would be trained without seeing a picture.
"""

from offleash.eval.errors import ConfigError
from offleash.eval.tasks import Problem, Task

__all__ = ["refuse_images"]


def refuse_images(task: Task) -> None:
    with_images = sum(map(_has_image, task.problems))
    if with_images:
        raise ConfigError(
            f"{with_images} of {len(task.problems)} prompts of task {task.name!r} hold images, which training does not "
            "pass on to the model yet: train on a task of text (`offleash sample --engine openai` sends images on)"
        )


def _has_image(problem: Problem) -> bool:
    contents = [] if isinstance(problem.prompt, str) else [message["content"] for message in problem.prompt]
    return any(part["type"] != "text" for parts in contents if not isinstance(parts, str) for part in parts)
