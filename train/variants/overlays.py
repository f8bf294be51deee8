"""What is compared: the base recipe itself (`plain`), and overlays of a few lines over it.

`recipes/variants/NAME.yaml` ships with Offleash; any other YAML is named by its path, and goes by its file's name.
Controls are no hypotheses: they say what a change of no interest (less learning, more leash, a meaningless bonus) does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import offleash.recipes
from offleash.eval.errors import ConfigError

__all__ = ["CONTROLS", "CONTROL_OF", "PLAIN", "Overlay", "find_overlays", "read_settings"]

PLAIN = "plain"
CONTROLS = (PLAIN, "high_beta", "high_lr", "low_lr", "placebo", "two_updates")
CONTROL_OF = {"clip_higher": "two_updates", "kl_cov": "two_updates", "rehearsal": "high_lr"}
"""Variants that change something beside their idea -> the control that changes this alone."""
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
        found.append(Overlay(path.stem, path, read_settings(path)))
    return found


def read_settings(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: keys and values are expected, got {type(values).__name__}")
    return {str(key): value for key, value in values.items()}


def _find(name: str) -> Path:
    shipped = RECIPES / "variants" / f"{name}.yaml"
    path = next((p for p in (shipped, Path(name)) if p.is_file()), None)
    if path is None:
        names = ", ".join(sorted(p.stem for p in shipped.parent.glob("*.yaml"))) or "none yet"
        raise ConfigError(f"no variant {name!r}: neither a YAML file here nor one that ships with Offleash ({names})")
    return path
