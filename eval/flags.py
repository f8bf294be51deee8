"""Settings that a Python function and a command share: the fields of a dataclass, each with the help of its flag."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NoReturn, TypeVar, get_args

from offleash.eval.errors import ConfigError

T = TypeVar("T")


class _Parser(argparse.ArgumentParser):
    """Errors in one line: argparse would print the usage first."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (`{self.prog} --help` explains the arguments)")


def command_parser(command: str, doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """The parser of `offleash COMMAND`. Its help is the module's docstring, which ends with "examples:"."""
    about, _, examples = (doc or "").partition("\nexamples:\n")
    return _Parser(
        prog=f"offleash {command}",
        description=about.strip(),
        epilog=f"examples:\n{examples.rstrip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )


def setting(default: T, help: str, **flag: Any) -> T:
    """A field of a dataclass. `flag` holds what `add_argument` takes beside the name, type and default."""
    return field(default=default, metadata={"help": help, **flag})


def json_setting(help: str) -> Mapping[str, Any]:
    """A field, {} by default, whose flag takes a JSON object."""
    return field(default_factory=dict, metadata={"help": help, "metavar": "JSON"})


def add_flags(group: "argparse._ArgumentGroup", settings: type, *names: str) -> None:
    """Add the flags of these fields: --save-every for save_every, unless its `flag` says otherwise."""
    known = {item.name: item for item in fields(settings)}
    for item in (known[name] for name in names):
        options = dict(item.metadata)
        default = "{}" if item.default is MISSING else item.default
        kind = next((kind for kind in (int, float) if kind in (item.type, *get_args(item.type))), str)
        if default not in (None, (), "{}"):
            options["help"] += f" (default {default})"
        name = options.pop("flag", "--" + item.name.replace("_", "-"))
        group.add_argument(name, dest=item.name, type=kind, default=default, **options)


def from_flags(settings: type[T], options: argparse.Namespace, **made: Any) -> T:
    """The settings that a command was given; `made` are fields that differ from the value of their flag."""
    for item in fields(settings):  # type: ignore[arg-type]
        if item.name not in made:
            value = getattr(options, item.name)
            is_json = item.metadata.get("metavar") == "JSON"
            made[item.name] = json_option(value, "--" + item.name.replace("_", "-")) if is_json else value
    return settings(**made)


def json_option(text: str, flag: str) -> dict[str, Any]:
    """The value of a flag that is a JSON object, such as --task-args."""
    example = f"{flag} must be a JSON object such as '{{\"n\": 200}}'; got {text!r}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{example}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(example)
    return value
