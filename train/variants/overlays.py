"""What is compared: the base recipe itself (`plain`), and overlays of a few lines over it.

`recipes/variants/NAME.yaml` ships with Offleash; any other YAML is named by its path, and goes by its file's name.
Controls are no hypotheses: they say what a change of no interest (less learning, more leash, a meaningless bonus) does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import offleash.recipes
from offleash.eval.errors import ConfigError
from offleash.train.recipe.config import read_recipe_file

PLAIN = "plain"
CONTROLS = (PLAIN, "high_beta", "high_lr", "low_lr", "placebo", "two_updates")
TAKEN = ("base-pools", "tensorboard")
RECIPES = Path(offleash.recipes.__path__[0])


@dataclass(frozen=True, slots=True)
class Overlay:
    """`path` is None for plain, which has no settings of its own."""

    name: str
    path: Path | None
    settings: Mapping[str, Any]


def find_overlays(names: Sequence[str]) -> list[Overlay]:
    """Plain first, then each name once."""
    found = [Overlay(PLAIN, None, {})]
    for name in names:
        if name == PLAIN:
            continue
        path = _find(name)
        if path.stem in TAKEN:
            raise ConfigError(f"a variant cannot be called {path.stem!r}, the sweep's own folder: rename the file")
        if any(other.name == path.stem for other in found):
            raise ConfigError(f"two variants are called {path.stem!r}: rename one of the files")
        found.append(Overlay(path.stem, path, read_recipe_file(path)))
    return found


def _find(name: str) -> Path:
    shipped = RECIPES / "variants" / f"{name}.yaml"
    path = next((p for p in (shipped, Path(name)) if p.is_file()), None)
    if path is None:
        names = ", ".join(sorted(p.stem for p in shipped.parent.glob("*.yaml"))) or "none yet"
        raise ConfigError(f"no variant {name!r}: neither a YAML file here nor one that ships with Offleash ({names})")
    return path
