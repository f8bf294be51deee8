"""A model pair: a base and the policy trained from it, how "The Invisible Leash" sampled them, and what it found.

One YAML each in recipes/pairs/. Counts are written as the paper prints them: preserved, expanded, shrunk, out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

import offleash.recipes
from offleash.eval.errors import ConfigError
from offleash.eval.stats.support import Dynamics
from offleash.eval.tasks import TASKS

FOLDER = Path(offleash.recipes.__path__[0]) / "pairs"
DOMAINS = ("math", "non-math")
SAMPLES = ("avg", "tokens", "token_entropy", "answer_entropy")
"""Rows of `offleash.eval.comparison.scopes.ROWS` that the paper's entropy study has (Table 5)."""
SAMPLES_K = 32
"""Its draws per problem: averages do not depend on them, answer entropy does."""


@dataclass(frozen=True, slots=True)
class Published:
    """The paper's numbers; what it does not report is absent."""

    tasks: Mapping[str, Dynamics]
    domains: Mapping[str, Dynamics]
    samples: Mapping[str, Mapping[str, tuple[float, float]]]
    """Task -> row -> (base, policy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """`tasks` gives the draws per problem; `task_args` and `engine_args` are passed on for every task."""

    name: str
    base: str
    policy: str
    base_revision: str | None = None
    policy_revision: str | None = None
    temperature: float
    top_p: float
    max_new_tokens: int
    tasks: Mapping[str, int]
    task_args: Mapping[str, Any] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    paper: Published


def pair_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find_pair(name: str) -> ModelPair:
    """By the name of a shipped one, or by its file."""
    path = next((path for path in (FOLDER / f"{name}.yaml", Path(name)) if path.is_file()), None)
    if path is None:
        raise ConfigError(f"no pair {name!r}: not a file, nor one of {', '.join(pair_names())}")
    return load_pair(path)


def load_pair(path: Path) -> ModelPair:
    """Read and check a pair's file; an unknown key or task, or a bad count, is an error that names it."""
    try:
        values = yaml.safe_load(path.read_text())
        known = {one.name for one in fields(ModelPair)} - {"name"}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"{path}: unknown key {', '.join(unknown)}; a pair has {', '.join(sorted(known))}")
        if unknown_tasks := sorted(set(values["tasks"]) - set(TASKS)):
            raise ConfigError(f"{path}: no task {', '.join(unknown_tasks)}; `offleash tasks` lists them")
        if bad := {task: k for task, k in values["tasks"].items() if type(k) is not int or k < 1}:
            raise ConfigError(f"{path}: tasks give the draws per problem, whole numbers from 1 on; got {bad}")
        return ModelPair(name=path.stem, **{**values, "paper": _published(values["paper"], values["tasks"])})
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not a valid pair: {' '.join(str(error).split())}") from error


def _published(values: Mapping[str, Any], tasks: Mapping[str, int]) -> Published:
    unknown = set(values) - {one.name for one in fields(Published)}
    unknown_tasks = {*values.get("tasks", {}), *values.get("samples", {})} - set(tasks)
    unknown_tasks |= set(values.get("domains", {})) - set(DOMAINS)
    if unknown | unknown_tasks:
        raise ValueError(f"paper has {', '.join(sorted(unknown | unknown_tasks))}, which the pair does not have")
    return Published(
        tasks={name: _dynamics(counts) for name, counts in values.get("tasks", {}).items()},
        domains={name: _dynamics(counts) for name, counts in values.get("domains", {}).items()},
        samples={
            name: {row: (float(rows[row][0]), float(rows[row][1])) for row in SAMPLES}
            for name, rows in values.get("samples", {}).items()
        },
    )


def _dynamics(counts: list[int]) -> Dynamics:
    preserved, expanded, shrunk, out = (int(count) for count in counts)
    return Dynamics(preserved=preserved, shrunk=shrunk, expanded=expanded, out=out)
