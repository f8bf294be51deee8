"""The variants of a sweep: the base recipe itself (`plain`), overlays of a few settings, and checks before training.

`recipes/variants/NAME.yaml` ships with Offleash; any other YAML file is given by its path and named after the file. An
explorer of your own is given as in a recipe, `my_module:Safe` or, with arguments, `my_module:Safe{weight: 0.2}`; the
overlay is then written to OUT/configs/explorers and named after the class and the arguments.
Controls are not hypotheses: they show the effect of a change of no interest (a lower learning rate, a larger beta, a
meaningless bonus).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from trl import GRPOConfig

import offleash.recipes
from offleash.eval.errors import ConfigError, OffleashError
from offleash.eval.files import write_atomic
from offleash.train.explorers.checks import no_op_settings, updates_per_rollout
from offleash.train.preflight.recipe_checks import check_explorers
from offleash.train.recipe.config import Recipe, parse_recipe, read_recipe_file, resolved

PLAIN = "plain"
CONTROLS = (PLAIN, "high_beta", "high_lr", "low_lr", "placebo", "two_updates")
ANY_PROCESSES = 40320
"""For a number of processes that only the launcher knows. TRL divides batches by it, so it has many divisors."""

CONFIGS = "configs"
_RESERVED = ("base-pools", CONFIGS, "tensorboard")
_SHIPPED = Path(offleash.recipes.__path__[0]) / "variants"
_CHANGES: dict[str, tuple[str, Callable[[GRPOConfig], float], int]] = {
    "low_lr": ("learning_rate", lambda training: float(training.learning_rate), -1),
    "high_lr": ("learning_rate", lambda training: float(training.learning_rate), 1),
    "high_beta": ("beta", lambda training: float(training.beta), 1),
    "two_updates": ("updates per rollout", updates_per_rollout, 1),
}
"""Control -> what it changes relative to plain, and in which direction."""
_MEASURED_BY = (
    *("model_name_or_path", "model_revision", "probe_task", "probe_args"),
    *("monitor_k", "monitor_successes", "monitor_score_k", "monitor_seed"),
    *("monitor_temperature", "monitor_top_p", "monitor_max_new_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "max_completion_length", "generation_kwargs", "use_vllm", "monitor_exact"),
)
"""Settings that the base pool and the monitor's samples depend on."""


@dataclass(frozen=True, slots=True)
class Overlay:
    name: str
    paths: tuple[Path, ...]
    """Files over the base recipe; none for plain."""
    settings: Mapping[str, Any]
    arm: str
    """What it is a trial of: its own name, except for further trials in a plan (`focal.2` is of `focal`)."""
    is_control: bool


def find_overlays(names: Sequence[str], out: Path | None = None) -> list[Overlay]:
    """Plain first, then each name once. Overlays of explorers of your own are written to `out`, the sweep's folder."""
    found = [Overlay(PLAIN, (), {}, PLAIN, True)]
    for name in names:
        if name == PLAIN:
            continue
        path = find_overlay(name, out)
        if any(other.name == path.stem for other in found):
            raise ConfigError(f"the variant name {path.stem!r} is duplicated: rename one of the files")
        found.append(Overlay(path.stem, (path,), read_recipe_file(path), path.stem, path.stem in CONTROLS))
    return found


def load_variants(arguments: Mapping[str, Sequence[str]], processes: int = 1) -> dict[str, Recipe]:
    """The recipe of each variant from its training arguments. Raises ConfigError naming the variant that is invalid."""
    recipes = {}
    for name, of_variant in arguments.items():
        try:
            recipes[name] = parse_recipe(of_variant, processes)
            check_explorers(recipes[name])
        except OffleashError as error:
            raise ConfigError(f"{name} cannot be trained: {error}") from error
    return recipes


def check_comparable(recipes: Mapping[str, Recipe]) -> None:
    """Every variant is measured in the same way as plain, and none has a setting without effect."""
    plain = _measured_by(recipes[PLAIN])
    for name, recipe in recipes.items():
        if not recipe.run.monitor_every:
            raise ConfigError(f"{name} would not be measured: monitor_every must not be 0 in a sweep")
        values = _measured_by(recipe)
        if changed := [key for key in _MEASURED_BY if values[key] != plain[key]]:
            key = changed[0]
            raise ConfigError(
                f"{name} changes {key} from {plain[key]!r} to {values[key]!r} and would not be measured like plain: "
                "change it in the base recipe, for all variants"
            )
        if name != PLAIN and (without_effect := no_op_settings(recipe.training)):
            raise ConfigError(f"{name}: {without_effect[0]} (write your own {name}.yaml)")


def _measured_by(recipe: Recipe) -> dict[str, Any]:
    values = {**resolved(recipe), "probe_task": recipe.run.probe_name}
    return {key: values[key] for key in _MEASURED_BY}


def check_controls(recipes: Mapping[str, Recipe], arms: Mapping[str, str]) -> None:
    """A control must change its setting in its direction: a low learning rate for one recipe is high for another.

    `arms`: overlay -> what it is a trial of.
    """
    for name in recipes:
        if arms[name] not in _CHANGES:
            continue
        what, value_of, side = _CHANGES[arms[name]]
        ours, plain = (value_of(recipes[which].training) for which in (name, PLAIN))
        if side * (ours - plain) <= 0:
            raise ConfigError(
                f"the control {name} has {what} {ours:g}, which is not {'above' if side > 0 else 'below'} the recipe's "
                f"{plain:g}: write your own {name}.yaml and pass its path instead"
            )


def find_overlay(name: str, out: Path | None) -> Path:
    """Of an overlay that ships with Offleash, a path, or one written for an explorer of your own."""
    path = next((p for p in (_SHIPPED / f"{name}.yaml", Path(name)) if p.is_file()), None)
    if path is None and out is not None and ":" in name.partition("{")[0]:
        return _own_overlay(name, out)
    if path is None:
        names = ", ".join(sorted(p.stem for p in _SHIPPED.glob("*.yaml")))
        raise ConfigError(
            f"no variant {name!r}: it is neither a YAML file nor one that ships with Offleash ({names}), nor an "
            "explorer of your own (my_module:MyExplorer)"
        )
    if path.stem in _RESERVED:
        raise ConfigError(f"the variant name {path.stem!r} is reserved for a folder of the sweep: rename {path}")
    return path


def _own_overlay(text: str, out: Path) -> Path:
    """`my_module:Safe{weight: 0.2}` as a file."""
    path, brace, rest = text.partition("{")
    try:
        arguments = yaml.safe_load(f"{brace}{rest}") if brace else {}
    except yaml.YAMLError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ConfigError(f"the arguments of {text!r} must be a mapping, as in my_module:Safe{{weight: 0.2}}")
    words = [path.rpartition(":")[2], *(f"{key}-{value}" for key, value in arguments.items())]
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", "_".join(words))[:100]
    if name in (*_RESERVED, *CONTROLS) or (_SHIPPED / f"{name}.yaml").is_file():
        raise ConfigError(f"{path!r} would be called {name!r}, which Offleash has already: rename the class")
    return write_settings(out, f"explorers/{name}", {"explorer": {path.strip(): arguments}})


def write_settings(out: Path, name: str, settings: Mapping[str, Any]) -> Path:
    """A recipe file in the folder of a sweep."""
    path = out / CONFIGS / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, yaml.safe_dump(dict(settings), sort_keys=False).encode())
    return path
