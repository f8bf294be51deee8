"""Whether a resumed run still has the recipe, launch and training problems with which it was started.

A resumed run follows the same trajectory, and its measurements are comparable, only under the same settings. A changed
setting is rejected by name unless `--allow` lists it; some cannot be allowed, because the change would have no effect.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

from transformers import TrainingArguments

from offleash.callbacks.summary import HISTORY
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.secrets import HIDDEN, without_secrets
from offleash.recipes import embedded_name
from offleash.train.explorers import find_explorer
from offleash.train.preflight.launch import sharding
from offleash.train.preflight.precision import precision
from offleash.train.recipe.config import Recipe, as_json, read_recipe_file, resolved
from offleash.train.recipe.explorer_flags import explorer_mapping
from offleash.train.run_folder.checkpoints import checkpoints

RESOLVED = "recipe.yaml"
LAUNCH = "launch.json"
"""Next to the recipe: what it does not say about a run."""

# May change freely: neither the trajectory nor a measurement depends on them.
FREE = {
    *("resume", "output_dir", "monitor_base_pools"),  # a folder may move; a base pool is identified by its fingerprint
    *("local_rank", "ddp_timeout", "vllm_group_port", "vllm_gpu_memory_utilization"),  # the machine
    "ddp_find_unused_parameters",  # TRL sets it if prompts contain images
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor"),
    *("disable_tqdm", "report_to", "run_name", "project", "rollout_metrics"),  # what is shown
    *("monitor_importance", "monitor_exact"),
    *("save_strategy", "save_steps", "save_total_limit", "push_to_hub"),  # what is kept and published
}
FREE_PREFIXES = ("log_", "logging_", "hub_", "trackio_", "vllm_server_")

# Can never change.
IN_THE_OPTIMIZER = {"learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim", "optim_args"}
IN_THE_BASE_POOL = {
    *("monitor_k", "monitor_successes", "monitor_seed"),
    *("monitor_temperature", "monitor_top_p", "monitor_max_new_tokens"),
}


class Launch(NamedTuple):
    """What a run was launched with. None if it is not known, as in a folder from an older version."""

    sharding: str | None = None
    precision: str | None = None
    processes: int | None = None
    train_problems: str | None = None
    """Their fingerprint: the file named in train_args may have changed."""


class Change(NamedTuple):
    key: str
    before: Any
    now: Any

    @property
    def root(self) -> str:
        return self.key.split(".")[0]

    def __str__(self) -> str:
        name = f"{self.key} (given by train_args)" if self.key == "train_problems" else self.key
        return f"{name} was {_shown(self.before)}, now {_shown(self.now)}"


def check_unchanged(recipe: Recipe, folder: Path) -> None:
    """Raise ConfigError if the recipe differs from the folder's in keys that are not allowed to change."""
    known = {*resolved(recipe), *Launch._fields}
    if unknown := sorted({key for key in recipe.run.allow if key.split(".")[0] not in known}):
        raise ConfigError(f"--allow: not a key of a recipe: {', '.join(unknown)}")
    _check_changes(changes(recipe, folder), recipe.run.allow, folder)


def check_same_launch(recipe: Recipe, folder: Path, train_problems: str | None = None) -> None:
    """Raise ConfigError if a run would be continued under another launch or, if given, with other problems."""
    if any(change.root in ("task", "train_args") for change in changes(recipe, folder)):
        train_problems = None  # they were allowed to change
    _check_changes(launch_changes(launch_of(recipe.training, train_problems), folder), recipe.run.allow, folder)


def _check_changes(changed: list[Change], allowed: list[str], folder: Path) -> None:
    fixed = {change.key: why for change in changed if (why := _why_fixed(change, folder))}
    listed = [c for c in changed if any(c.key == key or c.key.startswith(f"{key}.") for key in allowed)]
    rejected = [change for change in changed if change.key in fixed or change not in listed]
    if not rejected:
        return
    keys = " ".join(change.key for change in rejected)
    advice = f"Restore it, choose another --output_dir, or continue anyway with --allow {keys}"
    if fixed:
        key, why = next(iter(fixed.items()))
        advice = f"{key} cannot change within a run ({why}): restore it, or choose another --output_dir"
    told = "; ".join(map(str, rejected))
    raise ConfigError(f"{folder} was started with other settings: {told}. {advice}")


def launch_of(training: TrainingArguments, train_problems: str | None = None) -> Launch:
    return Launch(sharding(training), precision(training), training.world_size, train_problems)


def read_launch(folder: Path) -> Launch:
    path = folder / LAUNCH
    try:
        values = read_recipe_file(path) if path.exists() else {}  # JSON is YAML
    except ConfigError as error:
        raise ConfigError(f"{error}; remove {path} to resume without comparing the launch") from error
    return Launch(**{key: values.get(key) for key in Launch._fields})


def save_launch(launch: Launch, folder: Path) -> None:
    write_atomic(folder / LAUNCH, (json.dumps(launch._asdict(), indent=2) + "\n").encode())


def launch_changes(now: Launch, folder: Path) -> list[Change]:
    """What is known of both launches and differs. The number of processes is checked with the checkpoint."""
    before = read_launch(folder)
    rows = zip(Launch._fields, before, now, strict=True)
    return [Change(*row) for row in rows if None not in row and row[1] != row[2] and row[0] != "processes"]


def changes(recipe: Recipe, folder: Path) -> list[Change]:
    """What affects a run and differs from the recipe in its folder; a key missing there had its default."""
    path = folder / RESOLVED
    if not path.exists():
        return []
    now = resolved(recipe)
    saved = {**_defaults(recipe), **without_secrets(read_recipe_file(path))}
    old, new = _comparable({key: saved.get(key) for key in now}), _comparable(now)
    found = [Change(key, old.get(key), new.get(key)) for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    before, after = (list(explorer_mapping(values["explorer"])) for values in (saved, now))
    if before != after and sorted(before) == sorted(after):  # the order of explorers matters
        found.append(Change("explorer", before, after))
    return found


def _why_fixed(change: Change, folder: Path) -> str | None:
    """Why a change cannot be allowed, None if it can."""
    if change.root == "sharding":
        return "its checkpoints can be read only under the accelerate config they were written with"
    if change.root in IN_THE_OPTIMIZER and checkpoints(folder):
        return "a checkpoint restores the optimizer's settings"
    if change.root in IN_THE_BASE_POOL and (folder / HISTORY).exists():
        return "the measurements so far would not be comparable"
    return None


def _defaults(recipe: Recipe) -> dict[str, Any]:
    known = [field for part in recipe for field in fields(part)]
    plain = {field.name: field.default for field in known if field.default is not MISSING}
    made = {field.name: field.default_factory() for field in known if field.default_factory is not MISSING}
    return as_json({**plain, **made})


def _comparable(values: dict[str, Any]) -> dict[str, Any]:
    """The values that matter, by dotted key, without those that depend on the machine or are redundant."""
    kept = {key: v for key, v in values.items() if key not in FREE and not key.startswith(FREE_PREFIXES)}
    if embedded := embedded_name(kept["model_name_or_path"] or ""):
        kept["model_name_or_path"] = embedded  # wherever the package is installed
    said = {"revision": "model_revision", "attn_implementation": "attn_implementation", "dtype": "dtype"}
    kept["model_init_kwargs"] = {  # building the trainer adds these copies of other keys
        name: v for name, v in (kept["model_init_kwargs"] or {}).items() if name not in said or v != kept[said[name]]
    }
    if kept["probe_task"] == kept["task"]:
        kept["probe_task"] = None  # its default
    kept["explorer"] = {name: _filled(name, given) for name, given in explorer_mapping(kept["explorer"]).items()}
    return _leaves(kept)


def _filled(explorer: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """An explorer's arguments, including defaults."""
    parameters = inspect.signature(find_explorer(explorer)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return as_json({**defaults, **given})


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys. Unset, empty, hidden and absent are the same; only an inner {} is kept."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and (value or not prefix):
            found |= _leaves(value, f"{key}.")
        elif value not in (None, [], HIDDEN):
            found[key] = value
    return found


def _shown(value: Any) -> str:
    text = "unset" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:119] + "…"
