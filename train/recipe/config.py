"""A recipe: one flat YAML whose keys are ours, those of TRL's GRPOConfig and of TRL's ModelConfig; each is also a flag.

Unknown keys are rejected by name, in the file and on the command line. The resolved values are saved with the results.

A file applied over another one may say `scale: {max_steps: 2}`: multiply the value that the files and flags give.
Integers stay integers.
"""

import json
import math
import os
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import yaml
from transformers.hf_argparser import HfArg
from trl import GRPOConfig, ModelConfig, TrlParser

from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.registry import check_known_keys
from offleash.eval.secrets import without_secrets
from offleash.eval.yaml_file import read_yaml_mapping
from offleash.recipes import EMBEDDED, embedded_folder
from offleash.train.recipe.catalogue import find_recipe
from offleash.train.recipe.explorer_flags import explorer_mapping, take_explorers
from offleash.train.recipe.reward_names import check_reward_names, check_reward_weights

CADENCE = ("max_steps", "monitor_every", "save_steps", "warmup_steps")
"""Keys that count steps."""


@dataclass
class RunConfig:
    """What Offleash adds to TRL's keys."""

    task: str = HfArg(help="Task name (countdown, ...) or your own as `module:Class`.")
    train_args: dict[str, Any] | str | None = HfArg(
        default=None, help="Arguments of the task for the training problems, as a mapping (JSON on the command line)."
    )
    probe_task: str | None = HfArg(default=None, help="Task of the probe problems. Default: task.")
    probe_args: dict[str, Any] | str | None = HfArg(
        default=None, help="Arguments of probe_task for the held-out probe problems, which nothing may train on."
    )
    rewards: list[str] = HfArg(
        default_factory=lambda: ["verifier"],
        help="Reward functions, weighted by reward_weights: verifier (the task's, always first), format (1 if the "
        "verifier found an answer to judge) and your own as `module:function`, called as TRL calls it.",
    )
    resume: bool = HfArg(
        default=False,
        help="Continue from the last complete checkpoint in output_dir; start from scratch if there is none.",
    )
    allow: list[str] = HfArg(
        default_factory=list,
        help="Keys that may differ from those the run was started with. `--allow max_steps` trains longer; the "
        "learning rate then follows the schedule of the new length.",
    )
    monitor_every: int = HfArg(default=50, help="Steps between support measurements; 0 turns them off.")
    monitor_k: int = HfArg(default=64, help="Samples per probe problem at each measurement.")
    monitor_successes: int | None = HfArg(
        default=None,
        help="Draw a probe problem only until so many samples are correct, at most monitor_k. Default: all monitor_k.",
    )
    monitor_score_k: int = HfArg(
        default=16,
        help="How many of those are scored for token entropy and KL to the base; at most monitor_successes.",
    )
    monitor_batch_size: int = HfArg(default=256, help="Sequences generated at once, per process.")
    monitor_seed: int = HfArg(default=0, help="Seed of the monitor's own samples.")
    monitor_temperature: float | None = HfArg(default=None, help="Default: the training temperature.")
    monitor_top_p: float | None = HfArg(default=None, help="Default: the training top_p.")
    monitor_max_new_tokens: int | None = HfArg(default=None, help="Default: max_completion_length.")
    monitor_base_pools: str | None = HfArg(
        default=None, help="Folder in which base pools are cached. Default: base-pools next to output_dir."
    )
    monitor_importance: bool = HfArg(
        default=False, help="Also estimate support above 1/1000 by importance weights: for short completions."
    )
    monitor_exact: bool = HfArg(
        default=False,
        help="Also compute the exact probability of every correct answer, where the task lists all of their texts.",
    )
    rollout_metrics: bool = HfArg(default=True, help="Log metrics of the training rollouts.")
    explorer: dict[str, Any] | str | None = HfArg(
        default=None,
        help="Exploration variants: a name, or a mapping of names (or `module:Class`) to their arguments. As "
        "flags: --explorer pass_at_k --explorer.k 4.",
    )
    guards: list[str] = HfArg(
        default_factory=list,
        help="Rules such as 'srr < 0.9' or 'patience 3 nscr' (stop) and 'best sds' (mark a checkpoint).",
    )

    def __post_init__(self) -> None:
        self.train_args, self.probe_args = self.train_task_args, self.probe_task_args
        self.explorer = explorer_mapping(self.explorer)
        check_reward_names(self.rewards)
        if self.allow and not self.resume:
            raise ConfigError(f"allow ({', '.join(self.allow)}) applies only to a resumed run: add --resume")
        least = {"monitor_every": 0, "monitor_k": 1, "monitor_score_k": 1, "monitor_batch_size": 1}
        for name in (*least, "monitor_seed"):
            if type(value := getattr(self, name)) is not int:
                raise ConfigError(f"{name} must be an integer, got {value!r}")
            if name in least and value < least[name]:
                raise ConfigError(f"{name} must be at least {least[name]}, got {value}")
        if (stop := self.monitor_successes) is not None:
            if type(stop) is not int or not 1 <= stop <= self.monitor_k:
                raise ConfigError(f"monitor_successes must lie in 1..monitor_k ({self.monitor_k}), got {stop!r}")
            if self.monitor_importance:
                raise ConfigError("monitor_importance needs all monitor_k samples: leave out it or monitor_successes")

    @property
    def train_task_args(self) -> dict[str, Any]:
        return _mapping("train_args", self.train_args)

    @property
    def probe_task_args(self) -> dict[str, Any]:
        return _mapping("probe_args", self.probe_args)

    @property
    def probe_name(self) -> str:
        """The task of the probe problems."""
        return self.probe_task or self.task

    @property
    def explorers(self) -> dict[str, dict[str, Any]]:
        return explorer_mapping(self.explorer)


class _Parser(TrlParser):
    """Errors in one line: argparse would print hundreds of flags first."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (--help lists every key)")


class Recipe(NamedTuple):
    """A resolved recipe: Offleash's own keys, TRL's GRPOConfig and TRL's ModelConfig."""

    run: RunConfig
    training: GRPOConfig
    model: ModelConfig


def load_recipe(*names: str | Path, **values: Any) -> Recipe:
    """Load recipe files and override keys from Python.

    Args:
        *names: YAML files, or names of recipes that ship with Offleash (`lab`, `variants/pass_at_k`). The keys of a
            later file override those of an earlier one.
        **values: any key of a recipe; overrides the files.

    Raises:
        ConfigError: for an unknown key, or for values that cannot be used together.

    Example:
        >>> from offleash.train import load_recipe
        >>> recipe = load_recipe("lab", max_steps=2, output_dir="runs/short", use_cpu=True)
        >>> recipe.run.task, recipe.training.max_steps
        ('countdown', 2)
        >>> load_recipe("lab", "variants/pass_at_k", use_cpu=True).run.explorers
        {'pass_at_k': {'k': 4}}
    """
    return _resolve(names, values, [])


def parse_recipe(argv: Sequence[str], processes: int | None = None) -> Recipe:
    """A recipe from a command line: `--config FILE` and flags. Flags override the files, the files the defaults.

    `processes` resolves the recipe as if launched in that many processes, by which TRL divides its batches, on a
    machine that may have GPUs: without one here, TRL accepts bf16 only with `use_cpu`, which is then set.
    """
    names, args = _take("--config", argv)
    given = {word.split("=")[0] for word in args}
    if processes is not None and not torch.cuda.is_available() and "--use_cpu" not in given:
        args = [*args, "--use_cpu", "true"]
    return _resolve(names, {}, args, processes)


def _resolve(
    names: Sequence[str | Path], given: Mapping[str, Any], args: list[str], processes: int | None = None
) -> Recipe:
    """The recipe of these files, overridden by `given`, overridden by the flags in `args`."""
    parser = _parser(processes)
    known = {action.dest for action in parser._actions}
    values, scale = _read_files(names, known)
    check_known_keys(given, known - {"config", "help"}, "as an argument")
    values |= given
    for key, factor in scale.items():
        flags, args = _take(f"--{key}", args)
        value = flags[-1] if flags else values.get(key, parser.get_default(key))
        kind = next(action.type for action in parser._actions if action.dest == key)
        values[key] = _scaled(key, kind, value, factor)
    explorers, args = take_explorers(args, values.get("explorer"))
    if explorers:
        values["explorer"] = explorers
    parser.set_defaults_with_config(**values)
    try:
        run, training, model, _, rest = parser.parse_args_into_dataclasses(args, return_remaining_strings=True)
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"the configuration cannot be used: {error}") from error
    check_known_keys({word.split("=")[0].lstrip("-") for word in rest if word.startswith("--")}, known, "as a flag")
    if rest:
        raise ConfigError(f"these arguments belong to no flag: {' '.join(rest)}")
    check_reward_weights(run.rewards, training.reward_weights)
    move_tokens(training)
    if model.model_name_or_path is None:
        raise ConfigError(f"model_name_or_path is missing: give a folder, a hub id or one of {', '.join(EMBEDDED)}")
    if embedded := embedded_folder(model.model_name_or_path):
        model.model_name_or_path = str(embedded)
    return Recipe(run, training, model)


def move_tokens(training: GRPOConfig) -> None:
    """Put tokens for the hub into the environment (HF_TOKEN): the Trainer writes its arguments to several files.

    Raises ConfigError for tokens that differ, and for other secrets in a mapping (model_init_kwargs, ...).
    """
    kwargs = dict(training.model_init_kwargs or {})
    given = [training.hub_token, kwargs.get("token"), kwargs.get("use_auth_token")]
    tokens = {token for token in given if isinstance(token, str) and token}
    if len(tokens) > 1:
        raise ConfigError("hub_token and model_init_kwargs.token differ: give one, or set HF_TOKEN in the environment")
    if tokens:
        os.environ["HF_TOKEN"] = tokens.pop()
        training.hub_token = None
        kwargs = {key: value for key, value in kwargs.items() if key not in ("token", "use_auth_token")}
        training.model_init_kwargs = kwargs or None
    for name, values in vars(training).items():
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if without_secrets({key: value}) != {key: value}:
                raise ConfigError(f"{name}.{key} holds a secret and would be saved: set it in the environment")


def _parser(processes: int | None) -> _Parser:
    training = GRPOConfig
    if processes is not None:  # as it resolves in a launch of that many
        training = type("GRPOConfig", (GRPOConfig,), {"world_size": property(lambda self: processes)})
    made = _Parser(
        (RunConfig, training, ModelConfig),
        prog="offleash train",
        allow_abbrev=False,
        description="GRPO with a KL penalty and live support metrics. The flags are the keys of a recipe (see "
        "recipes/), of TRL's GRPOConfig and of TRL's ModelConfig.",
        epilog="example: offleash train --config recipes/lab.yaml --seed 1 --resume",
    )
    made.add_argument(
        "--config",
        help="The recipe: a YAML file, or the name of one that ships with Offleash (lab, variants/pass_at_k). "
        "May be repeated: the keys of a later file override those of an earlier one.",
    )
    return made


def _read_files(names: Sequence[str | Path], known: set[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """The values of the files, and the factors of their `scale`."""
    values: dict[str, Any] = {}
    scale: dict[str, float] = {}
    for path in map(find_recipe, names):
        read = read_recipe_file(path)
        factors = _mapping("scale", read.pop("scale", None))
        check_known_keys({*read, *factors}, known - {"config", "help"}, f"in {path}")
        values |= read
        for key, factor in factors.items():
            scale[key] = _number(key, float, factor) * scale.get(key, 1.0)
    return values, scale


def read_recipe_file(path: Path) -> dict[str, Any]:
    """The keys and values of a recipe or overlay file, unresolved."""
    return read_yaml_mapping(path, "a recipe")


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every effective value, defaults included, in the form in which a YAML file gives it back."""
    training = recipe.training.to_dict()
    values = {
        **{f.name: getattr(recipe.run, f.name) for f in fields(recipe.run)},
        **{f.name: getattr(recipe.model, f.name) for f in fields(recipe.model)},
        **{f.name: training[f.name] for f in fields(recipe.training) if f.name in training},
    }
    del values["generation_batch_size"]  # follows from the others, and TRL accepts only one of them
    del values["allow"]  # belongs to one resume, not to the run
    return dict(without_secrets(as_json(values)))


def as_json(values: dict[str, Any]) -> dict[str, Any]:
    """With the types that JSON has; everything else as text."""
    return dict(json.loads(json.dumps(values, default=str)))


def save_resolved(recipe: Recipe, path: Path) -> None:
    """Write every effective value, so that a run documents itself."""
    values = dict(sorted(resolved(recipe).items()))  # top level only: explorers act in the order of their mapping
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())


def _take(flag: str, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of every `flag X` or `flag=X`, spelled with hyphens or underscores, and the other arguments."""
    found, rest = [], []
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if flag_name(name) != flag:
            rest.append(word)
        elif equals:
            found.append(value)
        elif (following := next(words, None)) is not None:
            found.append(following)
        else:
            raise ConfigError(f"{flag} needs a value")
    return found, rest


def flag_name(word: str) -> str:
    """`--max-steps` is `--max_steps`."""
    return f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word


def _scaled(key: str, kind: Any, value: Any, factor: float) -> float:
    """An integer stays an integer: step counts are rounded up, anything else must come out exact."""
    number = _number(key, kind, value)
    if number < 0 or not factor > 0:
        raise ConfigError(f"scale: {key} is {value!r} and cannot be multiplied by {factor:g}: set {key} first")
    scaled = number * factor
    if key in CADENCE:
        return number if number < 1 else math.ceil(scaled)  # below 1 it is off, or a fraction of the run
    if isinstance(number, int) and scaled != int(scaled):
        raise ConfigError(f"scale: {factor:g} x {key} ({number}) is not an integer: change {key} or the factor")
    return int(scaled) if isinstance(number, int) else scaled


def _number(key: str, kind: Any, value: Any) -> float:
    try:
        number = kind(str(value))
    except (TypeError, ValueError, ArgumentTypeError):
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigError(f"scale: {key} is {value!r}, which is not a number")
    return number


def _mapping(name: str, value: dict[str, Any] | str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value or {}
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} must be JSON such as '{{\"n\": 64}}', got {value!r} ({error})") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{name} must be a mapping, got {value!r}")
    return parsed
