"""From a recipe to a trained model: GRPO with a KL penalty, exploration variants, checkpoints that can be resumed."""

from typing import TYPE_CHECKING

from offleash.eval.registry import lazy

if TYPE_CHECKING:
    from offleash.train.attach import explore
    from offleash.train.explorers.base import Explorer, Rollouts, Tokens
    from offleash.train.grpo import train
    from offleash.train.recipe.config import load_recipe

__all__ = ["Explorer", "Rollouts", "Tokens", "explore", "load_recipe", "train"]

_HOMES = {
    "Explorer": "explorers.base",
    "Rollouts": "explorers.base",
    "Tokens": "explorers.base",
    "explore": "attach",
    "load_recipe": "recipe.config",
    "train": "grpo",
}
__getattr__ = lazy(__name__, _HOMES)
