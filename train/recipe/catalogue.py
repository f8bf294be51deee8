"""The recipes that ship with Offleash: found by name, and described by the comment at the top of their files.

Nothing heavy is imported here: a name is found, or refused, at once.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import offleash.recipes
from offleash.eval.errors import ConfigError

RECIPES = Path(offleash.recipes.__path__[0])
FOLDERS = ("", "lab/", "models/", "variants/")
"""Of the files that `--config` takes, in the order in which they are listed."""
_LABEL = re.compile(r"(Needs|Hardware|Estimate|Data|Command|Expect): *")
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")
_LAUNCH = "accelerate launch ", "-m offleash.train"


@dataclass(frozen=True, slots=True)
class Shipped:
    """One recipe or overlay, as the comment at its top describes it."""

    name: str
    """As `--config` takes it: `lab`, `models/dapo-7b`."""
    path: Path
    summary: str
    hardware: str
    command: str


def shipped_names() -> list[str]:
    """The names of all recipes and overlays that ship with Offleash."""
    return [
        path.relative_to(RECIPES).with_suffix("").as_posix()
        for folder in FOLDERS
        for path in sorted((RECIPES / folder).glob("*.yaml"))
    ]


def shipped_recipes() -> Iterator[Shipped]:
    """Every recipe and overlay that ships with Offleash."""
    for name in shipped_names():
        path = RECIPES / f"{name}.yaml"
        said = _described(path.read_text(encoding="utf-8"))
        command = said.get("Command", "")
        if all(words in command for words in _LAUNCH):
            command = command.replace(_LAUNCH[0], "offleash train ").replace(_LAUNCH[1], "").replace("  ", " ")
        yield Shipped(name, path, said[""], said.get("Hardware", ""), command)


def find_recipe(name: str | Path) -> Path:
    """A file here, or one that ships with Offleash, with or without its `.yaml`."""
    name = str(name)
    shipped = RECIPES / (name if name.endswith(".yaml") else f"{name}.yaml")
    path = next((p for p in (Path(name), shipped, RECIPES.parent / name) if p.is_file()), None)
    if path is None:
        raise ConfigError(f"no recipe {name!r}: neither a file nor one that ships with Offleash ({_close(name)})")
    return path


def find_shipped(name: str) -> Path:
    """One that ships with Offleash: `lab`, `lab.yaml` or `recipes/lab.yaml`."""
    plain = name.removeprefix("recipes/").removesuffix(".yaml")
    if plain not in shipped_names():
        raise ConfigError(f"no recipe that ships with Offleash is called {name!r} ({_close(plain)})")
    return RECIPES / f"{plain}.yaml"


def _close(name: str) -> str:
    close = difflib.get_close_matches(name, shipped_names(), n=3, cutoff=0.4)
    return f"close: {', '.join(close)}" if close else "`offleash recipes` lists them"


def _described(text: str) -> dict[str, str]:
    """The comment at the top of a file by its labels; "" has the sentence that it opens with."""
    lines = [line.removeprefix("#").strip() for line in takewhile(lambda line: line[:1] == "#", text.splitlines())]
    said, label = {"": ""}, ""
    for line in lines:
        if found := _LABEL.match(line):
            label, line = found[1], line[found.end() :]
        elif label == "Command" and not said[label].endswith("\\"):
            continue  # a remark about it
        said[label] = f"{said.get(label, '').removesuffix(chr(92))} {line}".strip()
    said[""] = _SENTENCE_END.split(said[""])[0]
    return {label: re.sub(" +", " ", words) for label, words in said.items()}


def find_launcher_config(name: str) -> str:
    """A file here, or one of recipes/accelerate, which ships with Offleash."""
    shipped = RECIPES.parent / name
    return str(shipped) if not Path(name).is_file() and shipped.is_file() else name
