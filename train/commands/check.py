"""offleash check: a recipe looked over before it is run: data, model, explorers, memory, hours, money.

    offleash check recipes/lab.yaml --gpu cpu
    offleash check recipes/models/qwen2.5-0.5b-gsm8k.yaml --gpu 4090 --price 0.5
    offleash check recipes/models/dapo-7b.yaml --gpu H100 --accelerate recipes/accelerate/node_zero3.yaml

Every key of the recipe is also a flag here, as in training (`--max_completion_length 4096`). Nothing is trained and no
weight is loaded: the model's config and tokenizer are enough, and the tasks with their gold answers. Where the hub is
out of reach, give folders: --model_name_or_path FOLDER (config.json and the tokenizer), and path=FILE in train_args and
probe_args. Status 1 if something would fail or does not fit.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoConfig, AutoTokenizer

from offleash.callbacks.contamination import refuse_shared
from offleash.eval.errors import ConfigError, OffleashError
from offleash.eval.images import has_images, with_pictures, without_images
from offleash.eval.problem import Task, chat_text
from offleash.eval.tasks import TASKS, load_task
from offleash.eval.tasks.loading import Benchmark
from offleash.eval.verify.health import bad_golds
from offleash.train.explorers import load_explorers
from offleash.train.forecast.cost import EFFICIENCY, TRAFFIC, Lengths
from offleash.train.forecast.forecast import MONITOR_CACHE, Forecast, Machines, forecast
from offleash.train.forecast.hardware import GIB, GPUS, find_device
from offleash.train.forecast.memory import Sharding
from offleash.train.forecast.model_size import AdapterSize, ModelSize, measure_model
from offleash.train.images import all_have_images, check_takes_images, load_processor
from offleash.train.preflight.precision import rounding_problem
from offleash.train.preflight.recipe_checks import absent_packages, recipe_problems
from offleash.train.recipe.config import Recipe, parse_recipe

PROMPTS = 512
"""So many prompts are tokenized for the lengths."""


def main(words: list[str]) -> int:
    options, rest = _parser().parse_known_args(words)
    _check_flags(options)
    machines = _machines(options)
    recipe = _load(options.recipe, rest, machines.gpus)
    problems = recipe_problems(recipe, machines.gpus)
    _explorers(recipe, problems)
    tasks = _tasks(recipe, problems)
    model, tokenizer = _model(recipe, problems)
    longest, mean = _prompt_lengths(recipe, tasks, tokenizer, options.prompt_tokens, problems)
    if model is not None:
        if tasks is not None and tokenizer is not None:
            _contexts(recipe, model, longest, problems)
        if found := rounding_problem(recipe.model.dtype, machines.sharding, _precision(recipe), recipe.model.use_peft):
            problems.append(found)
        lengths, monitored = _lengths(recipe, mean, options.mean_tokens)
        made = forecast(recipe, model, machines, lengths, longest, *_counts(recipe, tasks), options.mfu, monitored)
        _show_memory(made, machines, problems)
        _show_time(made, machines, lengths, options)
    _show_notes(recipe, machines)
    for problem in problems:
        print(f"PROBLEM   {problem}")
    print("offleash: this recipe will not run as it is" if problems else "offleash: nothing speaks against this recipe")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="offleash check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("recipe", help="a recipe's file, or the name of one that ships with Offleash")
    add("--gpu", default="H100", help=f"{', '.join(GPUS)} or cpu, this machine's (default %(default)s)")
    add("--gpus", type=int, help="how many in all (default: what --accelerate says, or 1)")
    add("--accelerate", type=Path, metavar="FILE", help="the accelerate config: how many processes, and what is shared")
    add("--price", type=float, metavar="DOLLARS", help="of one GPU for one hour")
    add("--mfu", type=float, default=EFFICIENCY, help="share of peak arithmetic reached (default %(default)s)")
    add("--mean-tokens", type=float, help="mean length of a completion (default: half of max_completion_length)")
    add("--prompt-tokens", type=int, default=256, help="of a prompt, where the tasks or the tokenizer do not load")
    return made


def _check_flags(options: argparse.Namespace) -> None:
    for flag in ("gpus", "mfu", "mean_tokens", "prompt_tokens"):
        value = getattr(options, flag)
        if value is not None and not value > 0:
            raise ConfigError(f"--{flag.replace('_', '-')} must be above 0, got {value}")
    if options.mfu > 1:
        raise ConfigError(f"--mfu is a share, at most 1, got {options.mfu}")
    if options.price is not None and not options.price >= 0:
        raise ConfigError(f"--price must not be below 0, got {options.price}")


def _load(path: str, flags: list[str], gpus: int) -> Recipe:
    recipe = parse_recipe(["--config", path, *flags], gpus)
    print(f"recipe    {path}: {recipe.model.model_name_or_path}, task {recipe.run.task}")
    return recipe


def _machines(options: argparse.Namespace) -> Machines:
    sharding, gpus = _launch(options.accelerate) if options.accelerate else ("none", 1)
    return Machines(find_device(options.gpu), options.gpus or gpus, sharding)


def _launch(path: Path) -> tuple[Sharding, int]:
    """What an accelerate config shares between GPUs, and how many processes it starts."""
    try:
        values = yaml.safe_load(path.read_text())
        kind, processes = str(values["distributed_type"]), int(values["num_processes"])
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not an accelerate config: {error}") from error
    if kind == "DEEPSPEED":
        stages: dict[int, Sharding] = {0: "zero0", 1: "zero1", 2: "zero2", 3: "zero3"}
        return stages.get(values.get("deepspeed_config", {}).get("zero_stage"), "none"), processes
    return ("fsdp" if kind == "FSDP" else "none"), processes


def _explorers(recipe: Recipe, problems: list[str]) -> None:
    """Whether they are known by those names and arguments, fit together, and have the settings they need."""
    try:
        for explorer in load_explorers(recipe.run.explorers):
            explorer.check(recipe.training)
    except OffleashError as error:
        problems.append(str(error))


def _tasks(recipe: Recipe, problems: list[str]) -> tuple[Task, Task] | None:
    """Both tasks, None if one cannot be built; golds that do not verify and problems in both are noted."""
    run = recipe.run
    try:
        train, probe = load_task(run.task, **run.train_task_args), load_task(run.task, **run.probe_task_args)
    except OffleashError as error:
        problems.append(str(error))
        return None
    print(f"tasks     {len(train.problems):,} training and {len(probe.problems):,} probe problems")
    try:
        if all_have_images(train, probe):
            check_takes_images(load_explorers(run.explorers))
        for task in (train, probe):
            _check_golds(run.task, task)
        if run.monitor_every:
            refuse_shared([problem.prompt for problem in train.problems], probe)
    except OffleashError as error:
        problems.append(str(error))
    return train, probe


def _check_golds(name: str, task: Task) -> None:
    """A benchmark's golds were verified as it was loaded."""
    if isinstance(TASKS.get(name), Benchmark):
        return
    try:
        faults = bad_golds(task)
    except TypeError:  # nothing to verify: such a task makes its answers itself
        return
    if faults:
        raise ConfigError(f"{len(faults)} gold answers of {task.name} cannot be verified, first {': '.join(faults[0])}")


def _model(recipe: Recipe, problems: list[str]) -> tuple[ModelSize | None, Any]:
    """The model's size and tokenizer, from its config alone."""
    chosen = recipe.model
    where = {"revision": chosen.model_revision, "trust_remote_code": recipe.training.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(chosen.model_name_or_path, **where)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        problems.append(
            f"the model's config cannot be loaded ({reason}): where the hub is out of reach, copy config.json and the "
            "tokenizer into a folder and add --model_name_or_path FOLDER"
        )
        return None, None
    if chosen.dtype in (None, "auto"):
        chosen.dtype = str(config.dtype or torch.float32).removeprefix("torch.")
    size = measure_model(config, _adapter(recipe))
    if not size.trained:
        problems.append(
            f"lora_target_modules {chosen.lora_target_modules} are no linear layers of the model: name their ends (a "
            "single one is a pattern of the whole name, '.*q_proj')"
        )
    trained = f"an adapter of {_millions(size.trained)} trained" if size.adapter else "all trained"
    print(f"model     {config.model_type}, {_millions(size.parameters)} parameters, {trained}, {recipe.model.dtype}")
    return size, _tokenizer(chosen.model_name_or_path, where, problems)


def _tokenizer(name: str, where: dict[str, Any], problems: list[str]) -> Any:
    try:
        found = AutoTokenizer.from_pretrained(name, **where)
    except (OSError, ValueError) as error:
        problems.append(f"the tokenizer cannot be loaded: {str(error).strip().splitlines()[0]}")
        return None
    if not found("1 + 1")["input_ids"]:  # transformers makes an empty one where there is a config and no tokenizer
        problems.append(f"{name} has no tokenizer: copy tokenizer.json and tokenizer_config.json there as well")
        return None
    return found


def _precision(recipe: Recipe) -> str:
    return "bf16" if recipe.training.bf16 else "fp16" if recipe.training.fp16 else "no"


def _adapter(recipe: Recipe) -> AdapterSize | None:
    chosen = recipe.model
    if not chosen.use_peft:
        return None
    return AdapterSize(chosen.lora_r, chosen.lora_target_modules or ("q_proj", "v_proj"))


def _prompt_lengths(
    recipe: Recipe, tasks: tuple[Task, Task] | None, tokenizer: Any, assumed: int, found: list[str]
) -> tuple[int, float]:
    """Longest and mean prompt, in tokens."""
    if tasks is None or tokenizer is None:
        print(f"prompts   assumed to have {assumed} tokens (--prompt-tokens)")
        return assumed, float(assumed)
    problems = [problem for task in tasks for problem in task.problems[:PROMPTS]]
    if all(map(has_images, problems)):
        print("pixels    are not part of the estimates: about 5 KB for each patch of an image, for a batch of rollouts")
        try:
            processor = load_processor(recipe.model, pictured=True)
        except ConfigError as error:
            print(f"prompts   assumed to have {assumed} tokens, images included (--prompt-tokens): {error}")
            if not isinstance(error.__cause__, ImportError):  # what this machine lacks, another may have
                found.append(str(error))
            return assumed, float(assumed)
        sizes = [_tokens_with_images(processor, problem.prompt) for problem in problems]
    else:
        sizes = [_tokens(tokenizer, problem.prompt) for problem in problems]
    longest, mean = max(sizes), sum(sizes) / len(sizes)
    print(f"prompts   {mean:.0f} tokens on average, at most {longest}, of {len(sizes)} looked at")
    return longest, mean


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
    """Of training and of the monitor."""
    longest = recipe.training.max_completion_length
    monitored = recipe.run.monitor_max_new_tokens or longest
    if mean is not None and mean > longest:
        raise ConfigError(f"--mean-tokens is {mean:g}, more than max_completion_length ({longest})")
    return (
        Lengths(prompt, mean or longest / 2, longest),
        Lengths(prompt, min(mean, monitored) if mean else monitored / 2, monitored),
    )


def _counts(recipe: Recipe, tasks: tuple[Task, Task] | None) -> tuple[int | None, int | None]:
    """Training and probe problems; where they did not load, what their arguments ask for."""
    if tasks is not None:
        return len(tasks[0].problems), len(tasks[1].problems)
    return _asked(recipe.run.train_task_args), _asked(recipe.run.probe_task_args)


def _asked(arguments: dict[str, Any]) -> int | None:
    given = [arguments.get(key) for key in ("n", "sample", "limit")]
    return min((number for number in given if isinstance(number, int) and number > 0), default=None)


def _contexts(recipe: Recipe, model: ModelSize, prompt: int, problems: list[str]) -> None:
    """A prompt and its completion must fit the model, and what vLLM was told."""
    run, config = recipe.run, recipe.training
    completions = {"max_completion_length": config.max_completion_length}
    if run.monitor_every and run.monitor_max_new_tokens:
        completions["monitor_max_new_tokens"] = run.monitor_max_new_tokens
    limits = {"the model's context": model.context, "vllm_max_model_length": config.vllm_max_model_length}
    for key, completion in completions.items():
        for name, limit in limits.items():
            if limit is not None and prompt + completion > limit:
                problems.append(
                    f"the longest prompt ({prompt}) and {key} ({completion}) make {prompt + completion} tokens, more "
                    f"than {name} of {limit}"
                )


def _show_memory(made: Forecast, machines: Machines, problems: list[str]) -> None:
    device = machines.device
    print(f"memory    on each of {machines.gpus} x {device.name} ({device.memory / GIB:.1f} GiB), {machines.sharding}:")
    for part, size in made.memory.items():
        if size:
            print(f"          {size / GIB:8.2f} GiB  {part}")
    print(f"          {made.bytes / GIB:8.2f} GiB  in all, {made.bytes / device.memory:.0%}")
    if made.bytes > device.memory:
        batch = "monitor_batch_size" if MONITOR_CACHE in made.memory else "per_device_train_batch_size"
        problems.append(
            f"{made.bytes / GIB:.1f} GiB are needed and a {device.name} has {device.memory / GIB:.1f}: more GPUs with "
            f"ZeRO-3, use_peft, a smaller {batch}, or vllm_enable_sleep_mode"
        )
    if made.vllm_sequences is None:
        return
    if made.vllm_sequences < 1:
        problems.append("vLLM's share holds the weights but no whole sequence: raise vllm_gpu_memory_utilization")
    else:
        print(f"vLLM      caches {made.vllm_sequences:.0f} sequences of full length at once in each engine")


def _show_time(made: Forecast, machines: Machines, lengths: Lengths, options: argparse.Namespace) -> None:
    print(
        f"step      {made.rollouts:,.0f} rollouts of {lengths.prompt:.0f} + {lengths.completion:.0f} tokens: "
        f"{_span(made.step_seconds)} ({_span(made.rollout_seconds)} generating, {_span(made.update_seconds)} updating)"
    )
    if made.steps is None or made.training_seconds is None:
        print("training  steps unknown: the training problems did not load")
    else:
        print(f"training  {made.steps:,} steps: {_cost(made.training_seconds, machines.gpus, options.price)}")
    if made.measurements != 0:
        _show_monitor(made, machines, options.price)
    print(
        f"assumed   {options.mfu:.0%} of peak arithmetic, {TRAFFIC:.0%} of peak bandwidth, mean completion "
        f"{lengths.completion:.0f} tokens; no time for verifying, saving or starting up"
    )


def _show_monitor(made: Forecast, machines: Machines, price: float | None) -> None:
    if made.samples is None or made.measure_seconds is None:
        print("monitor   cost unknown: the probe problems did not load")
        return
    each = f"{made.samples:,} samples, {_span(made.measure_seconds)} each"
    if made.monitoring_seconds is None:
        print(f"monitor   {each}")
        return
    share = made.monitoring_seconds / (made.training_seconds or 1)
    cost = _cost(made.monitoring_seconds, machines.gpus, price)
    print(f"monitor   {made.measurements} x {each}: {cost}, {share:.0%} of training")


def _show_notes(recipe: Recipe, machines: Machines) -> None:
    if recipe.training.use_vllm and recipe.training.vllm_mode == "server":
        print(
            "note      the GPUs of the vLLM server are in neither memory nor cost; generating is timed as if it had "
            f"{machines.gpus}"
        )
    for line in absent_packages(recipe, machines.sharding):
        print(f"note      {line}")


def _cost(seconds: float, gpus: int, price: float | None) -> str:
    hours = gpus * seconds / 3600
    money = f", ${hours * price:,.2f}" if price is not None else ""
    return f"{_span(seconds)}, {hours:,.1f} GPU hours{money}" if hours >= 0.05 else f"{_span(seconds)}{money}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"
