"""Images in prompts: data URLs, as a task must have them, and the pictures that a model's processor takes."""

import base64
import binascii
import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.tasks.base import Problem

__all__ = ["has_images", "picture_key", "with_pictures", "without_images"]

Messages = list[dict[str, Any]]
SOURCE = "offleash.source"
"""Under which a picture knows its URL again."""


def has_images(problem: Problem) -> bool:
    contents = [] if isinstance(problem.prompt, str) else [message["content"] for message in problem.prompt]
    return any(part["type"] != "text" for parts in contents if not isinstance(parts, str) for part in parts)


def with_pictures(prompt: str | Messages) -> str | Messages:
    """The messages with `{"type": "image", "image": PIL}` for each `image_url`, as transformers and TRL take them.

    A prompt that has none stays as it is.
    """
    if isinstance(prompt, str) or not any(
        part["type"] == "image_url" for message in prompt for part in _parts(message["content"])
    ):
        return prompt
    return [{**message, "content": [_picture(part) for part in _parts(message["content"])]} for message in prompt]


def without_images(prompt: Messages) -> Messages:
    """The messages' text alone."""
    texts = ([part for part in _parts(message["content"]) if part["type"] == "text"] for message in prompt)
    return [{**message, "content": content} for message, content in zip(prompt, texts, strict=True)]


def picture_key(prompt: str | Messages) -> str:
    """The same for a prompt and for what `with_pictures` makes of it."""
    if isinstance(prompt, str):
        return prompt
    known = [(message["role"], [_source(part) for part in _parts(message["content"])]) for message in prompt]
    return json.dumps(known)


def _source(part: dict[str, Any]) -> str:
    if part["type"] == "text":
        return str(part["text"])
    return _digest(part["image_url"]["url"]) if part["type"] == "image_url" else str(part["image"].info.get(SOURCE))


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _parts(content: str | list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for part in content:  # a dataset gives every part the keys of all the others, with nothing in them
        yield {key: value for key, value in part.items() if value is not None}


def _picture(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "image_url":
        return part
    from PIL import Image, UnidentifiedImageError

    url = str(part["image_url"]["url"])
    start, _, data = url.partition(";base64,")
    if not start.startswith("data:") or not data:
        raise ConfigError(f"an image of a prompt must be a data URL (nothing is fetched), got {url[:60]!r}")
    try:
        picture = Image.open(io.BytesIO(base64.b64decode(data, validate=True))).convert("RGB")
    except (binascii.Error, UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ConfigError(f"an image of a prompt cannot be read: {error}") from error
    picture.info[SOURCE] = _digest(url)
    return {"type": "image", "image": picture}
