"""Images in prompts: data URLs, as tasks store them, and the PIL images that a model's processor takes."""

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Messages, Part, Problem, content_parts

SOURCE = "offleash.source"
"""The key of a PIL image's `info` that holds the digest of its data URL."""


def has_images(problem: Problem) -> bool:
    kinds = {part["type"] for part in _all_parts(problem.prompt)}
    if strange := sorted(kinds - {"text", "image_url"}):
        raise ConfigError(
            f"problem {problem.id!r}: parts of a prompt must be text or image_url, got {', '.join(strange)}"
        )
    return "image_url" in kinds


def as_parts(prompt: str | Messages) -> str | Messages:
    """The messages with every content as a list of parts."""
    if isinstance(prompt, str):
        return prompt
    return [{**message, "content": list(content_parts(message["content"]))} for message in prompt]


def with_pictures(prompt: str | Messages) -> str | Messages:
    """The messages with `{"type": "image", "image": PIL}` for each `image_url`, as transformers and TRL take them.

    A prompt without images is returned unchanged.
    """
    if isinstance(prompt, str) or all(part["type"] != "image_url" for part in _all_parts(prompt)):
        return prompt
    return [
        {**message, "content": [_picture(part) for part in content_parts(message["content"])]} for message in prompt
    ]


def without_images(prompt: Messages) -> Messages:
    """The messages with their text parts only."""
    texts = ([part for part in content_parts(message["content"]) if part["type"] == "text"] for message in prompt)
    return [{**message, "content": content} for message, content in zip(prompt, texts, strict=True)]


def picture_key(prompt: str | Messages) -> str:
    """A key that is the same for a prompt and for what `with_pictures` makes of it."""
    if isinstance(prompt, str):
        return prompt
    known = [(message["role"], [_source(part) for part in content_parts(message["content"])]) for message in prompt]
    return json.dumps(known)


def _source(part: Part) -> str:
    if part["type"] == "text":
        return str(part["text"])
    return _digest(part["image_url"]["url"]) if part["type"] == "image_url" else str(part["image"].info.get(SOURCE))


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _all_parts(prompt: str | Messages) -> Iterator[Part]:
    if not isinstance(prompt, str):
        for message in prompt:
            yield from content_parts(message["content"])


def _picture(part: Part) -> Part:
    if part["type"] != "image_url":
        return part
    url = str(part["image_url"]["url"])
    start, _, data = url.partition(",")
    if not (start.lower().startswith("data:") and start.lower().endswith(";base64")):
        raise ConfigError(f"an image in a prompt must be a base64 data URL (nothing is downloaded), got {url[:60]!r}")
    picture = _decoded(data.strip())
    picture.info[SOURCE] = _digest(url)
    return {"type": "image", "image": picture}


def _decoded(data: str) -> Any:
    """As RGB, rotated by its EXIF tag, transparent areas on white: what servers do too."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        picture: Any = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
        picture.load()
    except UnidentifiedImageError as error:
        raise ConfigError("cannot read an image in a prompt: unknown format") from error
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ConfigError(f"cannot read an image in a prompt: {error}") from error
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):  # 16-bit grayscale
        picture = picture.point(lambda value: value / 256).convert("L")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    ground = Image.new("RGBA", picture.size, "white")
    ground.alpha_composite(picture)
    return ground.convert("RGB")


def data_url(picture: Any) -> str:
    """A PIL image as a data URL."""
    if not hasattr(picture, "save"):
        raise ConfigError(
            f"an image in a dataset must be a PIL image (datasets decode them), got a {type(picture).__name__}"
        )
    sink = io.BytesIO()
    picture.save(sink, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(sink.getvalue()).decode()}"
