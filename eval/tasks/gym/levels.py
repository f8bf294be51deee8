"""Tasks of reasoning-gym by name and level: `gym/dice` (generator defaults, the paper's easy set), `gym/dice/hard`.

A task that is not in `HARD` has no hard setting. `PAPER` has the variants that only "The Invisible Leash" uses.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.tasks.gym.tasks import UNSUPPORTED, Gym
from offleash.eval.tasks.loading import choose

SIZE, SEED = 50, 45
"""As in reasoning-gym's own evaluation sets."""

HARD: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("hard.toml").read_text(encoding="utf-8"))

# The paper gives their number of vertices only; the colors are those of the hard set.
PAPER: dict[str, tuple[str, dict[str, Any]]] = {
    f"graph_color_vertex{n}": ("graph_color", {"min_num_vertices": n, "max_num_vertices": n, "num_colors": 4})
    for n in (15, 20)
}


def gym_task(
    name: str,
    *,
    size: int = SIZE,
    seed: int = SEED,
    config: Mapping[str, Any] | None = None,
    limit: int | None = None,
    ids: Sequence[str] | str | None = None,
    thinking: bool = False,
    workers: int | None = None,
) -> Gym:
    """`gym/TASK` or `gym/TASK/hard`; `config` changes single settings of the generator."""
    _, _, rest = name.partition("/")
    dataset, slash, level = rest.partition("/")
    if slash and level not in ("easy", "hard"):
        raise ConfigError(f"task {name!r}: a level is easy or hard, got {level!r}")
    dataset, settings = PAPER.get(dataset, (dataset, {}))
    if level == "hard":
        if dataset not in HARD.keys() | UNSUPPORTED.keys():
            raise ConfigError(f"reasoning-gym has no hard setting of {dataset!r}; give config=, or choose easy")
        settings = {**HARD.get(dataset, {}), **settings}
    task = Gym(dataset, size=size, seed=seed, config={**settings, **(config or {})}, thinking=thinking, workers=workers)
    task.name = f"gym/{rest.removesuffix('/easy')}"
    chosen = choose([(problem, {}) for problem in task.problems], name, ids, limit)
    task.problems = [replace(problem, meta={**problem.meta, "domain": "non-math"}) for problem, _ in chosen]
    return task
