"""Values in other tools' files, checked and converted to one type. Raises BadRow for a value that is invalid."""

import ast
import json
import math
from collections.abc import Mapping
from typing import Any

from offleash.eval.problem import chat_text

_ROUNDING = 1e-4


class BadRow(ValueError):
    """A row is invalid; the message says why."""


def as_text(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):  # what tables write for a missing cell
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise BadRow(f"{name} must be text, got {type(value).__name__}")


def as_number(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise BadRow(f"{name} must be a number, got {value!r:.40}")


def as_logprob(value: Any, name: str) -> float | None:
    """The log-probability of a sequence: finite, and above 0 only by rounding."""
    found = as_number(value, name)
    if found is not None and not (math.isfinite(found) and found <= _ROUNDING):
        raise BadRow(
            f"{name} must be a log-probability (finite, at most 0; leave it out if unknown), got {value!r:.40}"
        )
    return found


def as_integer(value: Any, name: str) -> int | None:
    if value is None:
        return None
    # The range is checked first: int() fails for NaN and Infinity.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31 or value != int(value):
        raise BadRow(f"{name} must be an integer of at least 0, got {value!r:.40}")
    return int(value)


def as_bool(value: Any, name: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise BadRow(f"{name} must be true or false, got {value!r:.40}")


def as_completion(value: Any) -> str | None:
    """The text of a completion that is text or chat messages, of which only the assistant's count."""
    if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        said = [dict(message) for message in value if message.get("role", "assistant") == "assistant"]
        return chat_text(said)
    return as_text(value, "completion")


def as_prompt(value: Any) -> str | list[dict[str, Any]] | None:
    """Text, or chat messages, which tables store as JSON."""
    if isinstance(value, str):
        return _stored_prompt(value)
    if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        return [dict(message) for message in value]
    return as_text(value, "prompt")


def prompt_text(prompt: str | list[dict[str, Any]]) -> str:
    """A prompt as `as_prompt` reads it: messages as JSON, and text that could be taken for them or is not UTF-8."""
    if isinstance(prompt, str) and as_prompt(prompt) == prompt and _is_utf8(prompt):
        return prompt
    return json.dumps(prompt)


def _is_utf8(text: str) -> bool:
    """Half of a surrogate pair, which JSON can hold, is not."""
    return text.encode(errors="replace").decode() == text


def _stored_prompt(text: str) -> str | list[dict[str, Any]]:
    """JSON counts only where it holds messages, or in turn a text that would be taken for them."""
    if not text.startswith(('[{"', '"')):
        return text
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(held, str):
        return held if _stored_prompt(held) != held or not _is_utf8(held) else text
    is_chat = isinstance(held, list) and all(
        isinstance(one, dict) and {"role", "content"} <= one.keys() for one in held
    )
    return held if is_chat else text


def as_list(value: Any) -> list[Any]:
    """A list, which tables of older lighteval versions store as a Python literal."""
    value = _literal(value)
    return list(value) if isinstance(value, list | tuple) else [value]


def as_meta(value: Any) -> dict[str, Any]:
    """An object, which tables store as JSON."""
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRow(f"meta is not JSON ({str(error)[:80]})") from None
    return dict(as_object(value, "meta")) if value else {}


def as_answers(value: Any) -> list[str] | None:
    """All correct answers, without duplicates."""
    if value is None:
        return None
    if not isinstance(value, list) or None in value:
        raise BadRow(f"all_answers must be a list of strings, got {value!r:.40}")
    listed = [as_text(answer, "each of all_answers") or "" for answer in value]
    if len(set(listed)) < len(listed):
        raise BadRow(f"all_answers must list each answer once, got {value!r:.40}")
    return listed


def as_mapping(value: Any, name: str) -> Mapping[str, Any]:
    """An object, which tables of older lighteval versions store as a Python literal."""
    return as_object(_literal(value), name)


def as_items(value: Any, name: str) -> list[Any]:
    """A list; None is an empty one."""
    if value is not None and not isinstance(value, list):
        raise BadRow(f"{name} must be a list, got {value!r:.40}")
    return value or []


def as_object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRow(f"{name} must be an object, got {value!r:.40}")
    return value


def _literal(value: Any) -> Any:
    """The value of a Python literal; other strings and values are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
