"""Recipes, and the base models of the labs, which ship with the package and have names."""

from pathlib import Path

EMBEDDED = {"lab": "base", "lab_colouring": "base_colouring", "lab_change": "base_change"}
"""The name of each embedded model, and its folder in recipes/lab."""


def embedded_folder(name: str) -> Path | None:
    """The folder of an embedded model; None if there is none of that name."""
    return Path(__file__).parent / "lab" / EMBEDDED[name] if name in EMBEDDED else None


def embedded_name(folder: str | Path) -> str | None:
    """The name of the embedded model in a folder, wherever the package is installed; None for any other folder."""
    last = Path(folder).parts[-3:]
    return next((name for name, kept in EMBEDDED.items() if last == ("recipes", "lab", kept)), None)
