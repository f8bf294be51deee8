"""Looks at every variant before the first is trained: a recipe that cannot be read, a control that is none."""

from collections.abc import Mapping, Sequence

from offleash.eval.errors import ConfigError, OffleashError
from offleash.train.config import Recipe, load_recipe_elsewhere
from offleash.train.explorers import load_explorers
from offleash.train.explorers.inert import updates_per_rollout
from offleash.train.variants.overlays import CONTROL_OF, PLAIN

__all__ = ["ANY_PROCESSES", "require_controls", "require_loadable"]

ANY_PROCESSES = 40320
"""Stands for a number that only the launcher knows: TRL divides its batches by it, and so it is divisible by much."""
SIDES = {"low_lr": ("learning_rate", -1), "high_lr": ("learning_rate", 1), "high_beta": ("beta", 1)}
"""Control -> what it changes against plain, and in which direction."""


def require_loadable(words: Mapping[str, Sequence[str]], processes: int = 1) -> dict[str, Recipe]:
    """The recipe of each variant from the words of its training command; ConfigError names the one that is broken."""
    recipes = {}
    for name, of_variant in words.items():
        try:
            recipes[name] = load_recipe_elsewhere(of_variant, processes)
            for explorer in load_explorers(recipes[name].run.explorers):
                explorer.require(recipes[name].training)
        except OffleashError as error:
            raise ConfigError(f"{name} cannot be trained: {error}") from error
    return recipes


def require_controls(recipes: Mapping[str, Recipe]) -> None:
    """A low learning rate for one recipe is a high one for another, and then it controls for nothing."""
    for name, (key, side) in SIDES.items():
        if name not in recipes:
            continue
        ours, plain = (getattr(recipes[which].training, key) for which in (name, PLAIN))
        if side * (ours - plain) <= 0:
            raise ConfigError(
                f"the control {name} has {key} {ours:g}, which is not {'above' if side > 0 else 'below'} the recipe's "
                f"{plain:g}: write an overlay of your own in a file {name}.yaml and name its path instead"
            )
    for name in ("two_updates", *(variant for variant, control in CONTROL_OF.items() if control == "two_updates")):
        if name not in recipes:
            continue
        ours, plain = (updates_per_rollout(recipes[which].training) for which in (name, PLAIN))
        if ours != 2 * plain:
            raise ConfigError(
                f"{name} has {ours} and not {2 * plain} updates per rollout under this recipe, where "
                f"gradient_accumulation_steps is {recipes[PLAIN].training.gradient_accumulation_steps}: write an "
                f"overlay of your own in a file {name}.yaml (half of gradient_accumulation_steps, the recipe's own "
                "steps_per_generation) and name its path instead"
            )
