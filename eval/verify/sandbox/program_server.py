"""The untrusted side of a judged program, a script in the sandbox: load it, then call its function on request.

The judge keeps the tests to itself and sends only arguments; only plain data comes back. So a program cannot read the
expected values, cannot patch the comparison, and cannot pass by exiting, printing or lying about equality: it can only
return values. Also holds the codec of those values, which both sides use. Standard library only, no package imports.
"""

import json
import math
import os
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

MAX_MESSAGE = 16 << 20
MAX_DEPTH = 60
CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class Opaque:
    """A value that is not plain data: equal to nothing, not even itself."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def encode(value: Any, depth: int = 0) -> Any:
    """Plain data as JSON. Subclasses become their base type, anything else becomes `Opaque`."""
    if depth > MAX_DEPTH:
        return {"opaque": "deeply nested"}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return {"int": hex(int(value))}
    if isinstance(value, float):
        return {"float": float.hex(float(value)) if math.isfinite(value) else repr(float(value))}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, dict):
        return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in dict.items(value)]}
    for name, kind in CONTAINERS.items():
        if isinstance(value, kind):
            return {name: [encode(item, depth + 1) for item in kind.__iter__(value)]}
    item = getattr(value, "item", None)  # scalars of numerical libraries know their Python value
    if callable(item) and getattr(value, "ndim", None) == 0:
        return encode(item(), depth + 1)
    return {"opaque": type(value).__name__[:80]}


def decode(data: Any) -> Any:
    """The value of an encoding; raises ValueError for anything else."""
    if data is None or isinstance(data, (bool, str)):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("not an encoded value")
    kind, content = next(iter(data.items()))
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(decode(content[0]), decode(content[1]))
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {decode(key): decode(value) for key, value in content}
    if kind in CONTAINERS:
        return CONTAINERS[kind](decode(item) for item in content)
    return Opaque(str(content))


# Messages are JSON after four bytes of length. The judge and the workers use these functions too; they are here
# because this file runs alone, as source text, and cannot import them.


def pack(message: Any, limit: int = MAX_MESSAGE) -> bytes:
    data = json.dumps(message).encode()
    if len(data) > limit:
        raise ValueError(f"a message of {len(data)} bytes is over the limit of {limit}")
    return struct.pack("!I", len(data)) + data


def frame_length(head: bytes, limit: int = MAX_MESSAGE) -> int:
    length = int(struct.unpack("!I", head)[0])
    if length > limit:
        raise ValueError(f"a message of {length} bytes is over the limit of {limit}")
    return length


def read_frame(read: Callable[[int], bytes], limit: int = MAX_MESSAGE) -> bytes:
    """The next message by `read(count)`, which returns at most that many bytes. EOFError if the other side is gone."""

    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            block = read(min(count - len(data), 1 << 20))
            if not block:
                raise EOFError
            data += block
        return bytes(data)

    return exactly(frame_length(exactly(4), limit))


def write_message(fd: int, message: Any) -> None:
    data = pack(message)
    while data:
        data = data[os.write(fd, data) :]


def read_message(fd: int) -> Any:
    return json.loads(read_frame(lambda count: os.read(fd, count)))


def serve(requests: int, replies: int) -> None:
    """Run the program of the first message, then answer calls until the judge is done."""
    module = types.ModuleType("__main__")
    first = read_message(requests)
    sys.path.extend(first["path"])
    sys.modules["__main__"] = module
    try:
        exec(compile(first["program"], "<program>", "exec"), module.__dict__)
        function = resolve(module.__dict__, first["entry"])
    except BaseException as error:  # whatever the program raises while loading, SystemExit included
        write_message(replies, {"failed": describe(error)})
        return
    write_message(replies, {"ready": True})
    while True:
        request = read_message(requests)
        write_message(replies, answer(function, decode(request["arguments"]), decode(request["keywords"])))


def resolve(namespace: dict[str, Any], entry: str) -> Any:
    """`name`, or `Class.method` of a new instance."""
    first, *rest = entry.split(".")
    found = namespace[first]
    for name in rest:
        found = getattr(found() if isinstance(found, type) else found, name)
    return found


def answer(function: Any, arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    try:
        value = function(*arguments, **keywords)
        return {"value": encode(value), "arguments": encode(arguments)}
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the program are its failures, not ours
        return {"raised": describe(error)}


def describe(error: BaseException) -> list[str]:
    """Its type and message."""
    try:
        return [type(error).__name__, str(error)[:300]]
    except BaseException:  # a hostile __str__
        return ["Exception", ""]


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
