"""`--config FILE.yaml`: the flags of a command from a file. A flag on the command line overrides the file.

The keys are the flags, with dashes or underscores. A flag that takes several values takes a list, one that takes JSON a
mapping, one without a value true or false; null is as if the key were not there. Paths are relative to the working
directory, as on the command line.
"""

import argparse
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.registry import WORDS, check_known_keys


def parse_with_config(
    parser: argparse.ArgumentParser, argv: Sequence[str], alternatives: Collection[str] = ()
) -> argparse.Namespace:
    """The options of a command line, completed by those of its `--config`. Raises ConfigError for what is in the file.

    `alternatives` are options that say the same thing: one of them on the command line overrides all of the file's.
    """
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with flags of this command as its keys")
    given = _given(parser, argv)
    if "config" not in given:
        return parser.parse_args(argv)
    stored = _read(given["config"], parser)
    overridden = {*given, *(alternatives if given.keys() & set(alternatives) else ())}
    chosen = {key: value for key, value in stored.items() if key not in overridden}
    for action in parser._actions:
        action.required = action.required and action.dest not in chosen
    return argparse.Namespace(**{**vars(parser.parse_args(argv)), **chosen})


class _Given(argparse.Namespace):
    """argparse puts a default where nothing is; here something is everywhere, so only what is given gets stored."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):  # argparse's own
            raise AttributeError(name)


def _given(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """What the command line says, without defaults."""
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    found = vars(parser.parse_args(argv, _Given()))
    for action in required:
        action.required = True
    return {name: value for name, value in found.items() if value != []}  # [] is a positional that is not there


def _read(path: Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The options in a file, converted and checked as their flags would be."""
    from offleash.eval.yaml_file import read_yaml_mapping

    actions = {_key(name): action for action in parser._actions for name in (action.option_strings or [action.dest])}
    actions = {name: action for name, action in actions.items() if action.dest not in ("help", "config")}
    values: dict[str, Any] = {}
    for name, value in read_yaml_mapping(path, "a config file").items():
        key = _key(name)
        if key in values:
            raise ConfigError(f"{path}: {key} is given twice, with dashes and with underscores")
        values[key] = value
    check_known_keys(values, actions, f"in {path}")
    return {
        actions[key].dest: _option(actions[key], value, f"{path}: {key}")
        for key, value in values.items()
        if value is not None and (value is not False or actions[key].nargs != 0)
    }


def _key(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _option(action: argparse.Action, value: Any, where: str) -> Any:
    """A value of the file as argparse would have stored the flag's."""
    if action.nargs == 0:
        if value is not True:
            raise ConfigError(f"{where} must be true or false, got {value!r}")
        return action.const
    if action.nargs == "?" and value is True:
        return action.const
    several = action.nargs in ("+", "*")
    if isinstance(action, argparse._AppendAction):
        items = value if isinstance(value, list) else [value]
        if not several:
            return [_value(action, item, where) for item in items]
        groups = items if all(isinstance(item, list) for item in items) else [items]
        return [[_value(action, item, where) for item in group] for group in groups]
    if several:
        return [_value(action, item, where) for item in (value if isinstance(value, list) else [value])]
    return _value(action, value, where)


def _value(action: argparse.Action, value: Any, where: str) -> Any:
    if action.metavar == "JSON" and isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, bool | list | dict):
        raise ConfigError(f"{where} cannot be {json.dumps(value, default=str)}: it takes what its flag takes")
    kind: Any = action.type if callable(action.type) else str
    try:
        made = kind(str(value))
    except (ValueError, argparse.ArgumentTypeError):
        raise ConfigError(f"{where} must be {WORDS.get(kind, kind)}, got {value!r}") from None
    if action.choices is not None and made not in action.choices:
        raise ConfigError(f"{where} must be one of {', '.join(map(str, action.choices))}, got {value!r}")
    return made
