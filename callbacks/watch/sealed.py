"""What a checkpoint's files say about themselves: whether they are complete, and what was written.

A complete checkpoint of ours is sealed with the size and SHA-256 of each of its files. The Trainer writes its state
last. A safetensors file says how long it is, torch's archives carry checksums, an index names its shards.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offleash.eval.files import write_atomic

SEAL = "checksums.json"


def seal(checkpoint: Path) -> None:
    """Record every file of a checkpoint that has just been written."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != SEAL)
    record = {path.relative_to(checkpoint).as_posix(): [path.stat().st_size, _sha256(path)] for path in files}
    write_atomic(checkpoint / SEAL, json.dumps(record, indent=1).encode())


def is_sealed(checkpoint: Path) -> bool:
    return (checkpoint / SEAL).exists()


def broken_seal(checkpoint: Path, counts: Callable[[str], bool] = lambda name: True) -> str | None:
    """Which file is not what was written, None if all are; only files whose relative name `counts`."""
    try:
        record = {str(name): (size, digest) for name, (size, digest) in json.loads(_text(checkpoint / SEAL)).items()}
    except (ValueError, TypeError, AttributeError):
        return f"{SEAL} cannot be read"
    wanted = filter(counts, record)
    for name in sorted(wanted, key=lambda name: record[name][0]):  # small files first: they are read at once
        path, (size, digest) = checkpoint / name, record[name]
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size or _sha256(path) != digest:
            return f"{name} is not what was written"
    return None


def trainer_state(checkpoint: Path) -> dict[str, Any] | None:
    """The Trainer's state, None if it is missing or not that of this step."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return None
    step = state.get("global_step") if isinstance(state, dict) else None
    return state if isinstance(step, int) and checkpoint.name.endswith(f"-{step}") else None


def is_readable(path: Path) -> bool:
    """What each kind of file says about itself: torch's are zip archives with checksums."""
    try:
        if path.suffix in (".pt", ".pth"):
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
        if path.name.endswith(".index.json"):
            return all((path.parent / name).is_file() for name in json.loads(_text(path))["weight_map"].values())
        if path.suffix == ".json":
            json.loads(_text(path))
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, path.stat().st_size)))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return path.stat().st_size == 8 + length + max(ends, default=0)
    except (zipfile.BadZipFile, ValueError, LookupError, TypeError, AttributeError, EOFError):
        return False
    return True


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
