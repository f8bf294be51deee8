"""Looks at every variant before the first is trained: a recipe that cannot be read, a control that is none.

A variant that changes something beside its idea needs a control that changes this alone: more updates per rollout, as
clip_higher and kl_cov have, need `two_updates`; a higher learning rate, as rehearsal has, needs `high_lr`.
"""

from collections.abc import Callable, Mapping, Sequence

from trl import GRPOConfig

from offleash.eval.errors import ConfigError, OffleashError
from offleash.train.explorers import load_explorers
from offleash.train.explorers.checks import no_op_settings, updates_per_rollout
from offleash.train.recipe.config import Recipe, parse_recipe, resolved
from offleash.train.variants.overlays import CONTROLS, PLAIN

ANY_PROCESSES = 40320
"""Stands for a number that only the launcher knows: TRL divides its batches by it, and so it is divisible by much."""


def _learning_rate(training: GRPOConfig) -> float:
    return float(training.learning_rate)


CHANGES: dict[str, tuple[str, Callable[[GRPOConfig], float], int]] = {
    "low_lr": ("learning_rate", _learning_rate, -1),
    "high_lr": ("learning_rate", _learning_rate, 1),
    "high_beta": ("beta", lambda training: float(training.beta), 1),
    "two_updates": ("updates per rollout", updates_per_rollout, 1),
}
"""Control -> what it changes against plain, and in which direction."""
OWN = ("high_lr", "two_updates")
"""Controls that a variant needs if it changes the same in the same direction."""
MEASURED_BY = (
    *("model_name_or_path", "model_revision", "task", "probe_args", "monitor_k", "monitor_score_k", "monitor_seed"),
    *("monitor_temperature", "monitor_top_p", "monitor_max_new_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "max_completion_length", "generation_kwargs", "use_vllm"),
)
"""What a base pool and the draws from a policy depend on."""


def require_loadable(words: Mapping[str, Sequence[str]], processes: int = 1) -> dict[str, Recipe]:
    """The recipe of each variant from the words of its training command; ConfigError names the one that is broken."""
    recipes = {}
    for name, of_variant in words.items():
        try:
            recipes[name] = parse_recipe(of_variant, processes)
            for explorer in load_explorers(recipes[name].run.explorers):
                explorer.check(recipes[name].training)
        except OffleashError as error:
            raise ConfigError(f"{name} cannot be trained: {error}") from error
    return recipes


def require_alike(recipes: Mapping[str, Recipe]) -> None:
    """All are measured, and alike; none sets what does nothing."""
    plain = resolved(recipes[PLAIN])
    for name, recipe in recipes.items():
        if not recipe.run.monitor_every:
            raise ConfigError(f"{name} would not be measured: monitor_every must not be 0 in a sweep")
        values = resolved(recipe)
        if changed := [key for key in MEASURED_BY if values[key] != plain[key]]:
            key = changed[0]
            raise ConfigError(
                f"{name} changes {key} from {plain[key]!r} to {values[key]!r}, and would be measured otherwise than "
                "plain: change it in the recipe, for all of them"
            )
        if name != PLAIN and (inert := no_op_settings(recipe.training)):
            raise ConfigError(f"{name}: {inert[0]} (in a file {name}.yaml of your own)")


def require_controls(recipes: Mapping[str, Recipe]) -> None:
    """A low learning rate for one recipe is a high one for another, and then it controls for nothing."""
    for name, (what, value_of, side) in CHANGES.items():
        if name not in recipes:
            continue
        ours, plain = (value_of(recipes[which].training) for which in (name, PLAIN))
        if side * (ours - plain) <= 0:
            raise ConfigError(
                f"the control {name} has {what} {ours:g}, which is not {'above' if side > 0 else 'below'} the recipe's "
                f"{plain:g}: write an overlay of your own in a file {name}.yaml and name its path instead"
            )
    for name, controls in own_controls(recipes).items():
        for control in (control for control in controls if control in recipes):
            what, value_of, _ = CHANGES[control]
            ours, theirs = (value_of(recipes[which].training) for which in (name, control))
            if ours != theirs:
                raise ConfigError(
                    f"{name} has {what} {ours:g} and its control {control} {theirs:g}: write an overlay of your own "
                    f"with {name}'s in a file {control}.yaml and name its path instead"
                )


def own_controls(recipes: Mapping[str, Recipe]) -> dict[str, tuple[str, ...]]:
    """Variant -> the controls that it must be compared with beside those of all."""
    return {name: _own(recipe, recipes[PLAIN]) for name, recipe in recipes.items() if name not in CONTROLS}


def _own(recipe: Recipe, plain: Recipe) -> tuple[str, ...]:
    def changed(control: str) -> bool:
        _, value_of, side = CHANGES[control]
        return side * (value_of(recipe.training) - value_of(plain.training)) > 0

    return tuple(control for control in OWN if changed(control))
