"""Flags that several commands take, and their values."""

import argparse
import json
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.pool.sample import DTYPES


def add_template(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--template",
        default="auto",
        help="auto: chat messages go through the tokenizer's chat template if it has one; plain: never; or a file",
    )
    group.add_argument(
        "--template-args", default="{}", metavar="JSON", help='arguments of the template: {"enable_thinking": false}'
    )


def add_model_files(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--dtype", choices=DTYPES, default="auto", help="auto: what the model's config says")
    group.add_argument("--revision", help="branch, tag or commit of a hub model")
    group.add_argument("--tokenizer", help="hub id or folder, if not the model's own")


def add_save_every(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--save-every", type=float, default=10.0, metavar="SECONDS", help="seconds between writes; default %(default)s"
    )


def json_option(text: str, flag: str) -> dict[str, Any]:
    """A flag whose value is a JSON object, such as --task-args."""
    example = f"{flag} must be a JSON object such as '{{\"n\": 200}}'; got {text!r}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{example}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(example)
    return value
