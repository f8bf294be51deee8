"""A recipe: one flat YAML whose keys are ours, TRL's GRPOConfig's and TRL's ModelConfig's, each also a flag.

Unknown keys are refused by name, in the file and on the command line; the resolved values are saved beside the results.

A file that lies over another may say `times: {max_steps: 2}`: twice whatever the files and flags say otherwise. Whole
numbers stay whole.
"""

import difflib
import json
import math
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import yaml
from trl import GRPOConfig, ModelConfig, TrlParser

import offleash.recipes
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.train.recipe.explorer_flags import explorer_mapping, take_explorers
from offleash.train.recipe.recipe_file import read_recipe_file

LAB_MODEL = "lab"
RECIPES = Path(offleash.recipes.__path__[0])
CADENCE = ("max_steps", "monitor_every", "save_steps", "warmup_steps")
"""Keys that count steps."""


@dataclass
class RunConfig:
    """What Offleash adds to TRL's keys."""

    task: str = field(metadata={"help": "Task name (countdown, ...) or your own as `module:Class`."})
    train_args: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Arguments of the task for the training problems, as a mapping (JSON on the command line)."},
    )
    probe_args: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Arguments of the task for the held-out probe problems, which nothing may train on."},
    )
    resume: bool = field(
        default=False,
        metadata={"help": "Continue from the last whole checkpoint in output_dir; start afresh if there is none."},
    )
    allow: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Keys that a resumed run may have changed since it began. `--allow max_steps` trains on; the "
            "learning rate then follows the schedule of the new length."
        },
    )
    monitor_every: int = field(default=50, metadata={"help": "Steps between support measurements; 0 switches it off."})
    monitor_k: int = field(default=64, metadata={"help": "Samples per probe problem at each measurement."})
    monitor_score_k: int = field(
        default=16, metadata={"help": "Of those, how many are scored for token entropy and KL to the base."}
    )
    monitor_batch_size: int = field(default=256, metadata={"help": "Sequences generated at once, per process."})
    monitor_seed: int = field(default=0, metadata={"help": "Seed of the monitor's own samples."})
    monitor_temperature: float | None = field(default=None, metadata={"help": "Default: the training temperature."})
    monitor_top_p: float | None = field(default=None, metadata={"help": "Default: the training top_p."})
    monitor_max_new_tokens: int | None = field(default=None, metadata={"help": "Default: max_completion_length."})
    monitor_base_pools: str | None = field(
        default=None,
        metadata={"help": "Where base pools are kept and found again. Default: base-pools beside output_dir."},
    )
    rollout_metrics: bool = field(default=True, metadata={"help": "Log what the training rollouts show for free."})
    explorer: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Exploration variants: a name, or a mapping of names (or `module:Class`) to their arguments. As "
            "flags: --explorer pass_at_k --explorer.k 4."
        },
    )
    guards: list[str] = field(
        default_factory=list, metadata={"help": "Rules such as 'srr < 0.9' (stop) or 'best sds' (mark a checkpoint)."}
    )

    def __post_init__(self) -> None:
        self.train_args, self.probe_args = self.train_task_args, self.probe_task_args
        self.explorer = explorer_mapping(self.explorer)
        if self.allow and not self.resume:
            raise ConfigError(f"allow ({', '.join(self.allow)}) is about a run that is continued: add --resume")
        for name in ("monitor_every", "monitor_k", "monitor_score_k", "monitor_batch_size", "monitor_seed"):
            if type(getattr(self, name)) is not int:
                raise ConfigError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        for name in ("monitor_k", "monitor_score_k", "monitor_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.monitor_every < 0:
            raise ConfigError(f"monitor_every must be 0 (off) or more, got {self.monitor_every}")

    @property
    def train_task_args(self) -> dict[str, Any]:
        return _mapping("train_args", self.train_args)

    @property
    def probe_task_args(self) -> dict[str, Any]:
        return _mapping("probe_args", self.probe_args)

    @property
    def explorers(self) -> dict[str, dict[str, Any]]:
        return explorer_mapping(self.explorer)


class _Parser(TrlParser):
    """argparse prints hundreds of flags before an error; one line is enough."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (--help lists every key)")


class Recipe(NamedTuple):
    run: RunConfig
    training: GRPOConfig
    model: ModelConfig


def load_recipe(args: Sequence[str]) -> Recipe:
    """Parse `--config FILE` and flags; a flag wins over the file, the file over defaults."""
    return _load(args, GRPOConfig)


def _load(args: Sequence[str], training_config: type[GRPOConfig]) -> Recipe:
    parser = _Parser(
        (RunConfig, training_config, ModelConfig),
        prog="offleash.train",
        allow_abbrev=False,
        description="GRPO with a KL leash and live support metrics. Keys are those of a recipe (see recipes/), "
        "of TRL's GRPOConfig and of TRL's ModelConfig.",
        epilog="example: accelerate launch -m offleash.train --config recipes/lab.yaml --seed 1 --resume",
    )
    parser.add_argument(
        "--config",
        help="The recipe: a YAML file, or the name of one that ships with Offleash (lab, variants/pass_at_k). "
        "May be given again: a later file's keys win.",
    )
    known = {action.dest for action in parser._actions}
    names, args = _take("--config", args)
    values: dict[str, Any] = {}
    times: dict[str, float] = {}
    for path in map(find_recipe, names):
        read = read_recipe_file(path)
        factors = _mapping("times", read.pop("times", None))
        _refuse_unknown({*read, *factors} - (known - {"config", "help"}), known, f"in {path}")
        values |= read
        for key, factor in factors.items():
            times[key] = _number(key, float, factor) * times.get(key, 1.0)
    for key, factor in times.items():
        flags, args = _take(f"--{key}", args)
        given = flags[-1] if flags else values.get(key, parser.get_default(key))
        kind = next(action.type for action in parser._actions if action.dest == key)
        values[key] = _scaled(key, kind, given, factor)
    explorers, args = take_explorers(args, values.get("explorer"))
    if explorers:
        values["explorer"] = explorers
    parser.set_defaults_with_config(**values)
    try:
        run, training, model, namespace, rest = parser.parse_args_into_dataclasses(args, return_remaining_strings=True)
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"the configuration cannot be used: {error}") from error
    _refuse_unknown({word.split("=")[0].lstrip("-") for word in rest if word.startswith("--")}, known, "as a flag")
    if rest:
        raise ConfigError(f"these words on the command line belong to no flag: {' '.join(rest)}")
    del namespace
    if model.model_name_or_path is None:
        raise ConfigError("model_name_or_path is missing: name a model folder, a hub id, or `lab` for the embedded one")
    if model.model_name_or_path == LAB_MODEL:
        model.model_name_or_path = str(RECIPES / "lab" / "base")
    return Recipe(run, training, model)


def load_recipe_elsewhere(args: Sequence[str], processes: int) -> Recipe:
    """As if launched in so many processes, by which TRL divides its batches, on a machine that may have GPUs.

    Without a GPU bf16 is refused unless the CPU is asked for, so it is.
    """
    given = {word.split("=")[0] for word in args}
    on_cpu = [] if torch.cuda.is_available() or "--use_cpu" in given else ["--use_cpu", "true"]
    launched = type("GRPOConfig", (GRPOConfig,), {"world_size": processes})
    return _load([*args, *on_cpu], launched)


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every effective value, defaults included, as it reads when it comes back from the file."""
    training = recipe.training.to_dict()
    values = {
        **{f.name: getattr(recipe.run, f.name) for f in fields(recipe.run)},
        **{f.name: getattr(recipe.model, f.name) for f in fields(recipe.model)},
        **{f.name: training[f.name] for f in fields(recipe.training) if f.name in training},
    }
    del values["generation_batch_size"]  # follows from the others, and TRL refuses to be told both
    del values["allow"]  # of one resume, not of the run
    return dict(json.loads(json.dumps(values, default=str)))


def save_resolved(recipe: Recipe, path: Path) -> None:
    """Write every effective value, so that a run explains itself."""
    values = dict(sorted(resolved(recipe).items()))  # only the keys: explorers act in the order in which they stand
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())


def _take(flag: str, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of every `flag X` or `flag=X`, with hyphens or underscores in it, and the other words."""
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
    """A whole number stays whole: steps are rounded up, anything else must come out even."""
    number = _number(key, kind, value)
    if number < 0 or not factor > 0:
        raise ConfigError(f"times: {key} is {value!r} here, and {factor:g} times that has no meaning: set {key} first")
    scaled = number * factor
    if key in CADENCE:
        return number if number < 1 else math.ceil(scaled)  # below 1 it is off, or a share of the run
    if isinstance(number, int) and scaled != int(scaled):
        raise ConfigError(f"times: {factor:g} x {key} ({number}) is no whole number: change {key}, or leave this out")
    return int(scaled) if isinstance(number, int) else scaled


def _number(key: str, kind: Any, value: Any) -> float:
    try:
        number = kind(str(value))
    except (TypeError, ValueError, ArgumentTypeError):
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigError(f"times: {key} is {value!r}, which cannot be multiplied")
    return number


def find_recipe(name: str) -> Path:
    """A file here, or one that ships with Offleash, with or without its `.yaml`."""
    shipped = RECIPES / (name if name.endswith(".yaml") else f"{name}.yaml")
    path = next((p for p in (Path(name), shipped, RECIPES.parent / name) if p.is_file()), None)
    if path is None:
        names = ", ".join(sorted(p.relative_to(RECIPES).as_posix() for p in RECIPES.rglob("*.yaml")))
        raise ConfigError(f"no recipe {name!r}: not a file here, nor one that ships with Offleash ({names})")
    return path


def _refuse_unknown(unknown: set[str], known: set[str], where: str) -> None:
    if not unknown:
        return
    hints = []
    for key in sorted(unknown):
        close = difflib.get_close_matches(key, known, n=1)
        hints.append(f"{key} (did you mean {close[0]}?)" if close else key)
    raise ConfigError(f"unknown key{'s' if len(hints) > 1 else ''} {where}: {', '.join(hints)}")


def _mapping(name: str, value: dict[str, Any] | str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value or {}
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} must be JSON such as '{{\"n\": 64}}', got {value!r} ({error})") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{name} must be a mapping, got {value!r}")
    return parsed
