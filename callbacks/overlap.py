"""Nothing that trains may see a probe problem: support on problems that were trained on says nothing."""

from collections.abc import Iterable
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.tasks import Task, prompt_key

__all__ = ["refuse_overlap", "refuse_shared"]


def refuse_overlap(dataset: Any, task: Task) -> None:
    """Raise ConfigError if a probe problem is among the dataset's prompts."""
    if "prompt" not in (getattr(dataset, "column_names", None) or []) or not hasattr(dataset, "__len__"):
        print(
            "offleash: WARNING: a streamed dataset cannot be searched for probe problems; make sure it has none of them"
        )
        return
    refuse_shared(dataset["prompt"], task)


def refuse_shared(prompts: Iterable[str | list[dict[str, Any]]], task: Task) -> None:
    """Raise ConfigError if a probe problem is among the prompts."""
    keys = {prompt_key(prompt) for prompt in prompts}
    both = [problem.id for problem in task.problems if prompt_key(problem.prompt) in keys]
    if both:
        raise ConfigError(
            f"{len(both)} of {len(task.problems)} probe problems are among the training problems ({', '.join(both[:3])}"
            f"{', ...' if len(both) > 3 else ''}): support on problems that were trained on says nothing. "
            "Take the probe problems from another split"
        )
