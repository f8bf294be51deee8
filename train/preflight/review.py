"""A recipe reviewed before it runs: data, model, explorers, memory and cost.

Nothing is trained and no weights are loaded: the model's config and tokenizer are enough, and the tasks with their gold
answers.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoTokenizer

from offleash.callbacks.contamination import check_contamination
from offleash.eval.errors import ConfigError
from offleash.eval.images import has_images, with_pictures, without_images
from offleash.eval.problem import Task, chat_text
from offleash.eval.tasks import checks_golds, load_task
from offleash.eval.verify.health import bad_golds, states_golds
from offleash.train.explorers import load_explorers
from offleash.train.forecast.engine_weights import weight_notes
from offleash.train.forecast.forecast import MONITOR_CACHE, Forecast, forecast
from offleash.train.forecast.hardware import FAST, GIB, SLOW, Machines, Pace
from offleash.train.forecast.lengths import Lengths
from offleash.train.forecast.model_size import AdapterSize, ModelSize, measure_model
from offleash.train.preflight.chat import check_chat_template, check_thinking
from offleash.train.preflight.images import all_have_images, check_takes_images, load_processor
from offleash.train.preflight.precision import check_rounding
from offleash.train.preflight.recipe_checks import absent_packages, check_explorers, collected, recipe_problems
from offleash.train.recipe.config import Recipe
from offleash.train.recipe.reward_names import find_rewards

PROMPTS = 512
"""How many prompts of a task are tokenized to find their lengths."""


class PromptLengths(NamedTuple):
    """In tokens. `measured` counts the prompts; 0 if the lengths are assumed."""

    longest: int
    mean: float
    measured: int = 0


@dataclass(frozen=True, slots=True)
class Review:
    """What is known of a recipe before it runs; None where something did not load."""

    recipe: Recipe
    tasks: tuple[Task, Task] | None
    """Training and probe problems."""
    model: ModelSize | None
    prompts: PromptLengths
    lengths: Lengths | None
    """Of training; None without a model."""
    forecast: Forecast | None
    bounds: tuple[Forecast, Forecast] | None
    """The same if the hardware is used as well, and as badly, as in published runs."""
    problems: list[str]
    """Why the recipe would fail or not fit; empty if nothing was found."""
    notes: list[str]


def review_recipe(
    recipe: Recipe,
    machines: Machines,
    *,
    prompt_tokens: int = 256,
    mean_tokens: float | None = None,
    paces: tuple[Pace, Pace] = (FAST, SLOW),
) -> Review:
    """Check a recipe and estimate its memory and cost.

    Args:
        recipe: as resolved for `machines.gpus` processes.
        machines: what it is to run on.
        prompt_tokens: assumed length of a prompt where the tasks or the tokenizer do not load.
        mean_tokens: mean length of a completion; None assumes half of max_completion_length.
        paces: how well, and how badly, the hardware may be used.
    """
    problems, notes = recipe_problems(recipe, machines.gpus), absent_packages(recipe, machines.sharding)
    training, on = recipe.training, machines.gpus
    if training.use_vllm and training.vllm_mode == "server":
        notes.append(f"the vLLM server's GPUs are in neither memory nor cost; generation is timed as if it had {on}")
    notes += weight_notes(training)
    with collected(problems):
        check_explorers(recipe)
    with collected(problems):
        find_rewards(recipe.run.rewards)
    tasks = _load_tasks(recipe, problems)
    model = tokenizer = None
    with collected(problems):
        model = _measure_model(recipe)
        tokenizer = _load_tokenizer(recipe)
        check_chat_template(tokenizer, *(tasks or ()))
        check_thinking(tokenizer, recipe.training.chat_template_kwargs, *(tasks or ()))
    prompts = _prompt_lengths(recipe, tasks, tokenizer, prompt_tokens, problems, notes)
    lengths = made = bounds = None
    if model is not None:
        if tasks is not None and tokenizer is not None:
            problems += _context_problems(recipe, model, prompts.longest)
        if not model.trained:
            problems.append(
                f"lora_target_modules {recipe.model.lora_target_modules} match no linear layer of the model: give the "
                "ends of their names (a single string is a pattern of the full name, '.*q_proj')"
            )
        precision = "bf16" if training.bf16 else "fp16" if training.fp16 else "no"
        with collected(problems):
            check_rounding(recipe.model.dtype, machines.sharding, precision, recipe.model.use_peft)
        lengths, monitored = _lengths(recipe, prompts.mean, mean_tokens)
        given = (lengths, prompts.longest, *_problem_counts(recipe, tasks), monitored)
        with_images = tasks is not None and any(map(has_images, tasks[0].problems))
        made, fast, slow = (
            forecast(recipe, model, replace(machines, pace=pace), *given, with_images=with_images)
            for pace in (machines.pace, *paces)
        )
        bounds = fast, slow
        problems += _memory_problems(made, machines)
    return Review(recipe, tasks, model, prompts, lengths, made, bounds, problems, notes)


def _load_tasks(recipe: Recipe, problems: list[str]) -> tuple[Task, Task] | None:
    """Both tasks, None if one cannot be built. Wrong gold answers and problems in both tasks are reported."""
    run, tasks = recipe.run, None
    with collected(problems):
        tasks = load_task(run.task, **run.train_task_args), load_task(run.probe_name, **run.probe_task_args)
        if all_have_images(*tasks):
            check_takes_images(load_explorers(run.explorers), recipe.training)
        for name, task in zip((run.task, run.probe_name), tasks, strict=True):
            _check_golds(name, task)
        if run.monitor_every:
            check_contamination([problem.prompt for problem in tasks[0].problems], tasks[1])
    return tasks


def _check_golds(name: str, task: Task) -> None:
    """Raise ConfigError if gold answers do not verify. Those of a benchmark were verified when it was loaded."""
    if checks_golds(name) or not states_golds(task):
        return
    if faults := bad_golds(task):
        raise ConfigError(f"{len(faults)} gold answers of {task.name} cannot be verified, first {': '.join(faults[0])}")


def _measure_model(recipe: Recipe) -> ModelSize:
    """The model's size, from its config alone, which also fills in the recipe's dtype."""
    chosen = recipe.model
    try:
        config = AutoConfig.from_pretrained(chosen.model_name_or_path, **_where(recipe))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the model's config cannot be loaded ({_first_line(error)}): if the hub cannot be reached, copy "
            "config.json and the tokenizer into a folder and add --model_name_or_path FOLDER"
        ) from error
    if chosen.dtype in (None, "auto"):
        chosen.dtype = str(config.dtype or torch.float32).removeprefix("torch.")
    targets = chosen.lora_target_modules or ("q_proj", "v_proj")
    return measure_model(config, AdapterSize(chosen.lora_r, targets) if chosen.use_peft else None)


def _load_tokenizer(recipe: Recipe) -> Any:
    name = recipe.model.model_name_or_path
    try:
        found = AutoTokenizer.from_pretrained(name, **_where(recipe))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer cannot be loaded: {_first_line(error)}") from error
    if not found("1 + 1")["input_ids"]:  # transformers makes an empty one if there is a config but no tokenizer
        raise ConfigError(f"{name} has no tokenizer: copy tokenizer.json and tokenizer_config.json there as well")
    return found


def _where(recipe: Recipe) -> dict[str, Any]:
    return {"revision": recipe.model.model_revision, "trust_remote_code": recipe.training.trust_remote_code}


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _prompt_lengths(
    recipe: Recipe, tasks: tuple[Task, Task] | None, tokenizer: Any, assumed: int, found: list[str], notes: list[str]
) -> PromptLengths:
    if tasks is None or tokenizer is None:
        return PromptLengths(assumed, assumed)
    problems = [problem for task in tasks for problem in task.problems[:PROMPTS]]
    if all(map(has_images, problems)):
        notes.append("pixels are not part of the estimates: about 5 KB per image patch, for a batch of rollouts")
        try:
            processor = load_processor(recipe.model, with_images=True)
        except ConfigError as error:
            notes.append(f"the images of prompts cannot be counted: {error}")
            if not isinstance(error.__cause__, ImportError):  # a package that is missing here may be installed there
                found.append(str(error))
            return PromptLengths(assumed, assumed)
        sizes = [_tokens_with_images(processor, problem.prompt) for problem in problems]
    else:
        sizes = [_tokens(tokenizer, problem.prompt) for problem in problems]
    return PromptLengths(max(sizes), sum(sizes) / len(sizes), len(sizes))


def _tokens_with_images(processor: Any, prompt: Any) -> int:
    shown = [with_pictures(prompt)]
    made = processor.apply_chat_template(shown, add_generation_prompt=True, tokenize=True, return_dict=True)
    return len(made["input_ids"][0])


def _tokens(tokenizer: Any, prompt: str | list[dict[str, Any]]) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    if tokenizer.chat_template is None:
        return len(tokenizer(chat_text(without_images(prompt), between="\n", between_parts="\n"))["input_ids"])
    texts = [{**message, "content": chat_text([message], between_parts="\n")} for message in without_images(prompt)]
    return len(tokenizer.apply_chat_template(texts, add_generation_prompt=True, tokenize=True, return_dict=False))


def _lengths(recipe: Recipe, prompt: float, mean: float | None) -> tuple[Lengths, Lengths]:
    """Lengths of training and of the monitor."""
    longest = recipe.training.max_completion_length
    monitored = recipe.run.monitor_max_new_tokens or longest
    if mean is not None and mean > longest:
        raise ConfigError(f"--mean-tokens is {mean:g}, above max_completion_length ({longest})")
    return (
        Lengths(prompt, mean or longest / 2, longest),
        Lengths(prompt, min(mean, monitored) if mean else monitored / 2, monitored),
    )


def _problem_counts(recipe: Recipe, tasks: tuple[Task, Task] | None) -> tuple[int | None, int | None]:
    """The numbers of training and probe problems; where they did not load, what their arguments ask for."""
    if tasks is not None:
        return len(tasks[0].problems), len(tasks[1].problems)
    return _asked(recipe.run.train_task_args), _asked(recipe.run.probe_task_args)


def _asked(arguments: dict[str, Any]) -> int | None:
    given = [arguments.get(key) for key in ("n", "sample", "limit")]
    return min((number for number in given if isinstance(number, int) and number > 0), default=None)


def _context_problems(recipe: Recipe, model: ModelSize, prompt: int) -> list[str]:
    """A prompt and its completion must fit into the model's context and vLLM's."""
    run, config = recipe.run, recipe.training
    completions = {"max_completion_length": config.max_completion_length}
    if run.monitor_every and run.monitor_max_new_tokens:
        completions["monitor_max_new_tokens"] = run.monitor_max_new_tokens
    limits = {"the model's context": model.context, "vllm_max_model_length": config.vllm_max_model_length}
    return [
        f"the longest prompt ({prompt}) and {key} ({completion}) make {prompt + completion} tokens, more than {name} "
        f"of {limit}"
        for key, completion in completions.items()
        for name, limit in limits.items()
        if limit is not None and prompt + completion > limit
    ]


def _memory_problems(made: Forecast, machines: Machines) -> list[str]:
    device, found = machines.device, []
    if made.bytes > device.memory:
        batch = "monitor_batch_size" if MONITOR_CACHE in made.memory else "per_device_train_batch_size"
        found.append(
            f"{made.bytes / GIB:.1f} GiB are needed and a {device.name} has {device.memory / GIB:.1f}: use more GPUs "
            f"with ZeRO-3, use_peft, a smaller {batch}, or vllm_enable_sleep_mode"
        )
    if made.vllm_sequences is not None and made.vllm_sequences < 1:
        found.append(
            "vLLM's share of the memory holds the weights but not one full sequence: raise vllm_gpu_memory_utilization"
        )
    return found
