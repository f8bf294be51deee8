"""Tokens, API keys and passwords are never written or shown: what looks like one is replaced by `<hidden>`.

A secret is the value of a key or of an environment variable that is named like one (`hub_token`, `api_key`), and
whatever stands before the @ of a URL or is named like one in its query. A container of Azure's storage stands there too
(abfs://container@account...), and is none.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "<hidden>"
# `pad_token`, `eos_token` and the like are tokens of a vocabulary.
_NAME = re.compile(
    r"(?i)(?:.*[_-])?(?:(?:hub|hf|auth|access|api|bearer|session)[_-]?token|(?:api|access|secret|private)[_-]?key"
    r"|password|passwd|passphrase|secret|credentials?|authorization)"
)
_IN_QUERY = re.compile(r"(?i)([?&][\w.-]*(?:token|key|signature|sig|password|secret)=)[^&\s\"'<>]+")
_BEFORE_HOST = re.compile(r"(?:(?<!abfs)(?<!abfss)://|://(?=[^/\s@]*:))[^/\s]*@")
_SHORTEST = 8
"""Shorter values of environment variables are not replaced: they may be parts of other words."""


def is_secret(key: str) -> bool:
    """Whether a key is named like a secret: `token`, `hub_token`, `api_key`, `password`."""
    return key.lower() == "token" or _NAME.fullmatch(key) is not None


def hide(text: str) -> str:
    """The text without the secrets that can be recognized in it.

    >>> hide("no server at http://me:pass@host:8000/v1")
    'no server at http://<hidden>@host:8000/v1'
    """
    if "@" in text:
        text = _BEFORE_HOST.sub(f"://{HIDDEN}@", text)
    if "=" in text and "://" in text:
        text = _IN_QUERY.sub(rf"\1{HIDDEN}", text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and value in text and (name.lower().endswith("_token") or is_secret(name)):
            text = text.replace(value, HIDDEN)
    return text


def without_secrets(value: Any) -> Any:
    """The same nested value with its secrets hidden; numbers, None and booleans are none.

    >>> without_secrets({"path": "a.jsonl", "api_key": "xyz"})
    {'path': 'a.jsonl', 'api_key': '<hidden>'}
    """
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if isinstance(inner, str) and inner and is_secret(str(key)) else without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(map(without_secrets, value))
    return hide(value) if isinstance(value, str) else value


def hide_in_flags(words: Iterable[str]) -> list[str]:
    """A command line with the values of secret flags hidden, also inside flags that hold JSON."""
    shown: list[str] = []
    name = ""
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else (name, "", word)
        name = flag if word.startswith("--") and not equals else ""
        if word.startswith("--") and not equals:
            shown.append(word)
            continue
        hidden = HIDDEN if is_secret(flag.lstrip("-").replace("-", "_").split(".")[-1]) else _hide_in_value(value)
        shown.append(f"{flag}={hidden}" if equals else hidden)
    return shown


def _hide_in_value(text: str) -> str:
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except ValueError:
            return hide(text)
        return json.dumps(hidden) if (hidden := without_secrets(value)) != value else text
    return hide(text)
