"""What a run drew to train on: rollouts, and base samples on training problems that its explorer asked for.

From what the run left behind: its resolved recipe, its last measured step, and its last checkpoint, which has a random
state of each process. The monitor's samples are no part of it.
"""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from offleash.train.explorers import find_explorer
from offleash.train.explorers.dynamic_sampling import FILE as DRAWN
from offleash.train.explorers.dynamic_sampling import rollouts
from offleash.train.recipe.explorer_flags import explorer_mapping
from offleash.train.run_folder.changes import RESOLVED
from offleash.train.run_folder.checkpoints import last_complete_checkpoint

DRAW_FROM_BASE = ("anchor", "seeding")


class Budget(NamedTuple):
    rollouts: int | None
    """Of all processes; None where the run left too little to tell."""
    base_samples: int


def read_budget(folder: Path, last_step: int) -> Budget:
    if not (folder / RESOLVED).exists():
        return Budget(None, 0)
    recipe = yaml.safe_load((folder / RESOLVED).read_text())
    drawn = None
    if (checkpoint := last_complete_checkpoint(folder)) is not None:
        if (checkpoint / DRAWN).exists():  # dynamic sampling: as many as it took
            drawn = int(json.loads((checkpoint / DRAWN).read_text())["rollouts"])
        elif processes := len(list(checkpoint.glob("rng_state*.pth"))):
            drawn = rollouts(recipe, last_step, processes)
    return Budget(drawn, base_samples(recipe, drawn))


def base_samples(recipe: Mapping[str, Any], drawn: int | None) -> int:
    """At most: `problems` x k, of as many training problems as the recipe has, or as a run of `drawn` rollouts sees."""
    total = 0
    for name, given in explorer_mapping(recipe.get("explorer")).items():
        if name not in DRAW_FROM_BASE:
            continue
        parameters = inspect.signature(find_explorer(name)).parameters.values()
        arguments = {**{parameter.name: parameter.default for parameter in parameters}, **given}
        if arguments.get("source", "base") != "base":
            continue
        seen = None if drawn is None else drawn // recipe["num_generations"]
        limits = [arguments["problems"] or seen, (recipe.get("train_args") or {}).get("n")]
        total += min((limit for limit in limits if limit is not None), default=0) * arguments["k"]
    return total
