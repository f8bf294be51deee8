"""A conversation of several turns as text that a person can read and a program can take apart.

Each part starts with a header line, `=== assistant ===`, `=== call: NAME ===` or `=== tool: NAME ===`. A line of the
conversation that looks like a header is indented by one space, so whatever a model or a tool writes, the headers are
ours.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from offleash.eval.problem import chat_text

ASSISTANT = "assistant"
_HEADER = re.compile(r"^=== (.*) ===$", re.MULTILINE)
_LIKE_A_HEADER = re.compile(r"^(?= *=== .* ===$)", re.MULTILINE)
_INDENTED = re.compile(r"^ (?= *=== .* ===$)", re.MULTILINE)


def part(header: str, text: str) -> str:
    """One part of a transcript: its header, then the text. What UTF-8 cannot hold becomes a question mark."""
    made = f"=== {' '.join(header.split())} ===" + (f"\n{_LIKE_A_HEADER.sub(' ', text)}" if text else "")
    return made.encode("utf-8", "replace").decode()


def transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    """Chat messages as a transcript: what the assistant says, the tools it calls, and what they return.

    >>> call = {"function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    >>> print(transcript([
    ...     {"role": "assistant", "content": "", "tool_calls": [call]},
    ...     {"role": "tool", "name": "add", "content": "4"},
    ...     {"role": "assistant", "content": "It is 4."},
    ... ]))
    === assistant ===
    === call: add ===
    {"a": 2, "b": 2}
    === tool: add ===
    4
    === assistant ===
    It is 4.
    """
    return "\n".join(text for message in messages for text in _parts(message))


def _parts(message: Mapping[str, Any]) -> list[str]:
    role, said = str(message["role"]), chat_text([dict(message)])
    if role != ASSISTANT:
        return [part(f"{role}: {message['name']}" if "name" in message else role, said)]
    thought = str(message.get("reasoning_content") or "")
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [
        *([part("reasoning", thought)] if thought else []),
        part(ASSISTANT, said),
        *(part(f"call: {call['name']}", _arguments(call.get("arguments"))) for call in calls),
    ]


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)


def final_turn(text: str) -> str:
    """What the assistant says last, which is what a verifier judges; "" if it was still calling tools.

    >>> final_turn("=== assistant ===\\n2 + 2 is 4.")
    '2 + 2 is 4.'
    >>> final_turn("=== assistant ===\\nLet me see.\\n=== call: add ===\\n{}")
    ''
    """
    headers = list(_HEADER.finditer(text))
    last = max((n for n, header in enumerate(headers) if header[1] == ASSISTANT), default=None)
    if last is None or any(header[1].partition(":")[0] in ("call", "tool") for header in headers[last + 1 :]):
        return ""
    end = headers[last + 1].start() - 1 if last + 1 < len(headers) else len(text)
    return _INDENTED.sub("", text[headers[last].end() : end].removeprefix("\n"))
