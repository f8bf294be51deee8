"""Values of flags that several commands take."""

import json
from typing import Any

from offleash.eval.errors import ConfigError


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
