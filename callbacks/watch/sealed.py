"""What a checkpoint's files say about themselves: whether they are complete, and what was written.

A complete checkpoint of ours is sealed with the size and SHA-256 of each of its files. The Trainer writes its state
last. A safetensors file says how long it is, torch's archives carry checksums, an index names its shards.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from offleash.eval.files import write_atomic

SEAL = "checksums.json"
READERS = 8
"""Files that are read at once: of a sharded checkpoint of hundreds of gigabytes one thread hashes about 1 GB/s."""


def seal(checkpoint: Path) -> None:
    """Record every file of a checkpoint that has just been written."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != SEAL)
    with ThreadPoolExecutor(READERS) as readers:
        digests = list(readers.map(_sha256, files))
    record = {
        path.relative_to(checkpoint).as_posix(): [path.stat().st_size, digest]
        for path, digest in zip(files, digests, strict=True)
    }
    write_atomic(checkpoint / SEAL, json.dumps(record, indent=1).encode())


def is_sealed(checkpoint: Path) -> bool:
    return (checkpoint / SEAL).exists()


def broken_seal(checkpoint: Path, counts: Callable[[str], bool] = lambda name: True) -> str | None:
    """Which file is not what was written, None if all are; only files whose relative name `counts`."""
    try:
        record = {str(name): (size, digest) for name, (size, digest) in json.loads(_text(checkpoint / SEAL)).items()}
    except (ValueError, TypeError, AttributeError):
        return f"{SEAL} cannot be read"
    wanted = sorted(filter(counts, record))
    if missing := next((name for name in wanted if not (checkpoint / name).is_file()), None):
        return f"{missing} is missing"
    changed = next((name for name in wanted if (checkpoint / name).stat().st_size != record[name][0]), None)
    if changed is None:
        with ThreadPoolExecutor(READERS) as readers:
            digests = list(readers.map(lambda name: _sha256(checkpoint / name), wanted))
        changed = next((name for name, found in zip(wanted, digests, strict=True) if found != record[name][1]), None)
    return f"{changed} is not what was written" if changed else None


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
