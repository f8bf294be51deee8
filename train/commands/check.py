"""Check a recipe before running it: data, model, explorers, memory, hours, cost.

Every key of the recipe is also a flag here, as in training (`--max_completion_length 4096`). Nothing is trained and no
weights are loaded: the model's config and tokenizer are enough, and the tasks with their gold answers. Classes and
functions of your own that the recipe names are imported, which runs their code: a warning names each before that. If
the hub is not reachable, give folders: --model_name_or_path FOLDER (config.json and the tokenizer), and path=FILE in
train_args and probe_args. Exits with status 1 if something would fail or does not fit.

examples:
    offleash check lab --gpu cpu
    offleash check models/qwen2.5-0.5b-gsm8k --gpu 4090 --price 0.5
    offleash check models/dapo-7b --gpu H100 --accelerate recipes/accelerate/node_zero3.yaml
    offleash check mine.yaml --max_completion_length 4096
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser
from offleash.eval.registry import announced_imports
from offleash.train.forecast.hardware import FAST, GIB, GPUS, SLOW, USUAL, Machines, Pace, find_device
from offleash.train.recipe.catalogue import find_launcher_config, find_recipe

if TYPE_CHECKING:
    from offleash.train.forecast.forecast import Forecast
    from offleash.train.forecast.lengths import Lengths
    from offleash.train.preflight.review import Review
    from offleash.train.recipe.config import Recipe


def main(argv: list[str]) -> int:
    options, rest = _parser().parse_known_args(argv)
    _check_flags(options)
    find_recipe(options.recipe)
    device = find_device(options.gpu)
    from offleash.train.preflight.launch import read_accelerate_config  # TRL and torch: only if the flags can be used
    from offleash.train.preflight.review import review_recipe
    from offleash.train.recipe.config import parse_recipe

    launcher = find_launcher_config(str(options.accelerate)) if options.accelerate else ""
    sharding, gpus = read_accelerate_config(Path(launcher)) if launcher else ("none", 1)
    usual, fast, slow = (_pace(pace, options.mfu) for pace in (USUAL, FAST, SLOW))
    machines = Machines(device, options.gpus or gpus, sharding, usual)
    with announced_imports(_warner()):
        recipe = parse_recipe(["--config", options.recipe, *rest], machines.gpus)
        if recipe.training.trust_remote_code:
            _warn(f"trust_remote_code runs code that comes with {recipe.model.model_name_or_path}")
        run = recipe.run
        probe = f", probe task {run.probe_task}" if run.probe_name != run.task else ""
        rewards = f", rewards {' + '.join(run.rewards)}" if len(run.rewards) > 1 else ""
        say(f"recipe    {options.recipe}: {recipe.model.model_name_or_path}, task {run.task}{probe}{rewards}")
        lengths = {"prompt_tokens": options.prompt_tokens, "mean_tokens": options.mean_tokens}
        review = review_recipe(recipe, machines, **lengths, paces=(fast, slow))
    _show_inputs(review)
    if review.forecast is not None and review.lengths is not None and review.bounds is not None:
        _show_memory(review.forecast, machines)
        stops = run.monitor_successes is not None
        _show_time((review.forecast, *review.bounds), machines, review.lengths, options.price, stops)
        _show_disk(review.forecast, review.recipe)
    for note in review.notes:
        say(f"note      {note}")
    for problem in review.problems:
        say(f"PROBLEM   {problem}")
    say("offleash: this recipe will not run as it is" if review.problems else "offleash: no problems found")
    return 1 if review.problems else 0


def _pace(pace: Pace, mfu: float | None) -> Pace:
    return pace if mfu is None else pace._replace(arithmetic=mfu)


def _warner() -> Callable[[str, str], None]:
    """Warns once of each name in a recipe that is not ours."""
    told: set[str] = set()

    def warn(kind: str, name: str) -> None:
        if name not in told:
            told.add(name)
            _warn(f"{kind} {name} is not part of Offleash, and importing it runs its code")

    return warn


def _warn(text: str) -> None:
    say(f"offleash: WARNING: {text}", error=True)


def _parser() -> argparse.ArgumentParser:
    made = command_parser("check", __doc__, allow_abbrev=False)
    add = made.add_argument
    add("recipe", help="a recipe file, or the name of one that ships with Offleash")
    add("--gpu", default="H100", help=f"{', '.join(GPUS)}, or cpu for this machine (default %(default)s)")
    add("--gpus", type=int, help="number of GPUs in total (default: that of --accelerate, or 1)")
    add("--accelerate", type=Path, metavar="FILE", help="accelerate config: number of processes and sharding")
    add("--price", type=float, metavar="DOLLARS", help="price of one GPU for one hour")
    add(
        "--mfu",
        type=float,
        help=f"fraction of peak arithmetic reached (default {USUAL.arithmetic}, between {SLOW.arithmetic} and "
        f"{FAST.arithmetic})",
    )
    add("--mean-tokens", type=float, help="mean length of a completion (default: half of max_completion_length)")
    add("--prompt-tokens", type=int, default=256, help="length of a prompt, if the tasks or the tokenizer do not load")
    return made


def _check_flags(options: argparse.Namespace) -> None:
    for flag in ("gpus", "mfu", "mean_tokens", "prompt_tokens"):
        value = getattr(options, flag)
        if value is not None and not value > 0:
            raise ConfigError(f"--{flag.replace('_', '-')} must be above 0, got {value}")
    if options.mfu is not None and options.mfu > 1:
        raise ConfigError(f"--mfu must be at most 1, got {options.mfu}")
    if options.price is not None and not options.price >= 0:
        raise ConfigError(f"--price must be 0 or more, got {options.price}")


def _show_inputs(review: "Review") -> None:
    if review.tasks is not None:
        train, probe = review.tasks
        say(f"tasks     {len(train.problems):,} training and {len(probe.problems):,} probe problems")
    if (model := review.model) is not None:
        trained = f"an adapter of {_millions(model.trained)} trained" if model.adapter else "all trained"
        dtype = review.recipe.model.dtype
        say(f"model     {model.architecture}, {_millions(model.parameters)} parameters, {trained}, {dtype}")
    prompts = review.prompts
    text = f"assumed to have {prompts.longest} tokens, images included (--prompt-tokens)"
    if prompts.measured:
        text = f"{prompts.mean:.0f} tokens on average, at most {prompts.longest} ({prompts.measured} measured)"
    say(f"prompts   {text}")


def _show_memory(made: "Forecast", machines: Machines) -> None:
    device = machines.device
    say(f"memory    on each of {machines.gpus} x {device.name} ({device.memory / GIB:.1f} GiB), {machines.sharding}:")
    for part, size in made.memory.items():
        if size:
            say(f"          {size / GIB:8.2f} GiB  {part}")
    say(f"          {made.bytes / GIB:8.2f} GiB  in total, {made.bytes / device.memory:.0%}")
    if made.vllm_sequences is not None and made.vllm_sequences >= 1:
        say(f"vLLM      caches {made.vllm_sequences:.0f} sequences of full length at once in each engine")


def _show_time(
    forecasts: "tuple[Forecast, Forecast, Forecast]",
    machines: Machines,
    lengths: "Lengths",
    price: float | None,
    stops: bool,
) -> None:
    """As usual, and in brackets as fast and as slow as published runs were. `stops`: the monitor's plan stops early."""
    made = forecasts[0]
    say(
        f"step      {made.rollouts:,.0f} rollouts of {lengths.prompt:.0f} + {lengths.completion:.0f} tokens: "
        f"{_span(made.step_seconds)} ({_span(made.rollout_seconds)} generating, {_span(made.update_seconds)} updating)"
    )
    training = [one.training_seconds for one in forecasts if one.training_seconds is not None]
    if made.steps is None or not training:
        say("training  steps unknown: the training problems did not load")
    else:
        say(f"training  {made.steps:,} steps: {_cost(training, machines.gpus, price)}")
    if made.measurements != 0:
        _show_monitor(forecasts, machines, price, "at most " if stops else "")
    pace = machines.pace
    say(
        f"assumed   {pace.arithmetic:.0%} of peak arithmetic, {pace.bandwidth:.0%} of peak bandwidth, completions of "
        f"{lengths.completion:.0f} tokens on average; no time for verifying or starting up. In brackets: hardware used "
        "as well, and as badly, as in published runs"
    )


def _show_disk(made: "Forecast", recipe: "Recipe") -> None:
    if (disk := made.disk) is None:
        return
    if recipe.training.save_only_model:
        advice = "save_only_model: cannot be resumed from"
    else:
        advice = f"{_size(disk.model)} with save_only_model, which cannot be resumed from"
    kept = "all of them, save_total_limit is not set" if disk.kept is None else f"up to {disk.kept} at a time"
    total = "" if disk.kept is None else f", {_size(disk.kept * disk.checkpoint)}"
    say(f"disk      {_size(disk.checkpoint)} each checkpoint ({advice}), {kept}{total}")


def _size(size: float) -> str:
    """In powers of 10, as disks are sold."""
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6)):
        if size >= 10**power:
            return f"{size / 10**power:.{1 if size < 100 * 10**power else 0}f} {unit}"
    return f"{size / 1000:.0f} kB"


def _show_monitor(forecasts: "Sequence[Forecast]", machines: Machines, price: float | None, most: str) -> None:
    made = forecasts[0]
    if made.samples is None or made.measure_seconds is None:
        say("monitor   cost unknown: the probe problems did not load")
        return
    each = f"{made.samples:,} samples, {_span(made.measure_seconds)} each"
    if made.monitoring_seconds is None:
        say(f"monitor   {most}{each}")
        return
    share = made.monitoring_seconds / (made.training_seconds or 1)
    cost = _cost([one.monitoring_seconds or 0.0 for one in forecasts], machines.gpus, price)
    say(f"monitor   {most}{made.measurements} x {each}: {cost}, {share:.0%} of training")


def _cost(seconds: Sequence[float], gpus: int, price: float | None) -> str:
    """Of the usual time, with its bounds."""
    usual, *bounds = seconds
    hours, low, high = (gpus * each / 3600 for each in seconds)
    times = f"{_span(usual)} [{', '.join(map(_span, bounds))}]"
    money = f", ${hours * price:,.2f} [{low * price:,.2f}, {high * price:,.2f}]" if price is not None else ""
    return f"{times}, {hours:,.1f} GPU hours [{low:,.1f}, {high:,.1f}]{money}" if hours >= 0.05 else f"{times}{money}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"
