"""The explorers that a recipe and its flags choose: `--explorer pass_at_k focal --explorer.k 4`.

A flag `--explorer.ARG` goes to the chosen explorer that takes ARG; `--explorer.NAME.ARG` names the explorer.
"""

import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from offleash.eval.errors import ConfigError
from offleash.train.explorers import find_explorer, fit_explorer_arguments

FLAG = "--explorer"


def explorer_mapping(value: Any) -> dict[str, dict[str, Any]]:
    """A recipe's `explorer`, in any of its short forms, as names with their arguments."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(
                f'explorer must be JSON such as \'{{"pass_at_k": {{"k": 4}}}}\', got {value!r}'
            ) from error
    if value is None:
        return {}
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, list | tuple):
        return _joined(value)
    if not isinstance(value, Mapping):
        raise ConfigError(f"explorer must be a name or a mapping of names to arguments, got {value!r}")
    for name, arguments in value.items():
        if arguments is not None and not isinstance(arguments, Mapping):
            raise ConfigError(f"the arguments of explorer {name!r} must be a mapping, got {arguments!r}")
    return {str(name): dict(arguments or {}) for name, arguments in value.items()}


def take_explorers(words: list[str], from_recipe: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The explorers chosen by flags and recipe, and the other flags. Names given as flags replace the recipe's."""
    names, settings, rest = _split(words)
    chosen = explorer_mapping(from_recipe)
    if names is not None:
        chosen = _joined(filter(None, names))
        if not chosen:
            raise ConfigError(f"{FLAG} needs a name; `{FLAG} identity` turns a recipe's explorer off")
    for key, text in settings.items():
        name, argument = _owner(key, chosen)
        try:
            chosen[name][argument] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{FLAG}.{key}: {text!r} is not a YAML value; put quotes inside: '\"{text}\"'") from error
    return {name: fit_explorer_arguments(name, arguments) for name, arguments in chosen.items()}, rest


def _joined(parts: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """A sequence of names and mappings as one mapping."""
    joined: dict[str, dict[str, Any]] = {}
    for part in parts:
        if not part or not isinstance(part, str | Mapping):
            raise ConfigError(f"explorer must be a list of names or of mappings of names to arguments, got {part!r}")
        for name, arguments in explorer_mapping(part).items():
            if name in joined:
                raise ConfigError(f"explorer {name!r} is duplicated")
            joined[name] = arguments
    return joined


def _split(words: list[str]) -> tuple[list[str] | None, dict[str, str], list[str]]:
    names: list[str] | None = None
    settings: dict[str, str] = {}
    rest: list[str] = []
    i = 0
    while i < len(words):
        flag, equals, value = words[i].partition("=")
        i += 1
        if flag != FLAG and not flag.startswith(f"{FLAG}."):
            rest.append(words[i - 1])
            continue
        values = [value] if equals else []
        while not equals and i < len(words) and not words[i].startswith("--"):
            values.append(words[i])
            i += 1
        if flag == FLAG:
            names = (names or []) + values
        elif len(values) != 1:
            raise ConfigError(f"{flag} needs one value, got {' '.join(values) or 'none'}")
        else:
            settings[flag.removeprefix(f"{FLAG}.")] = values[0]
    return names, settings, rest


def _owner(key: str, chosen: Mapping[str, Any]) -> tuple[str, str]:
    """The explorer that a flag belongs to, and the argument."""
    for name in chosen:
        if key.startswith(f"{name}."):
            return name, key.removeprefix(f"{name}.")
    takers = [name for name in chosen if key in inspect.signature(find_explorer(name)).parameters]
    if len(takers) == 1:
        return takers[0], key
    if takers:
        raise ConfigError(f"{' and '.join(takers)} both take {key}: use {FLAG}.{takers[0]}.{key}")
    raise ConfigError(f"{FLAG}.{key}: no chosen explorer ({', '.join(chosen) or 'none'}) takes {key}")
