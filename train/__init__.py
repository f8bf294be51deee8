"""From a recipe to a trained model: GRPO with a KL penalty, exploration variants, checkpoints that can be resumed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offleash.train.explorers.base import Explorer, Rollouts, Tokens
    from offleash.train.grpo import train
    from offleash.train.recipe.config import load_recipe

__all__ = ["Explorer", "Rollouts", "Tokens", "load_recipe", "train"]

_HOMES = {
    "Explorer": "explorers.base",
    "Rollouts": "explorers.base",
    "Tokens": "explorers.base",
    "load_recipe": "recipe.config",
    "train": "grpo",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
