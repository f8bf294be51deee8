"""Which checkpoint a run continues from: the last one that was written whole.

The Trainer writes a checkpoint file by file, its state last: a kill in between leaves a folder that cannot be loaded.
"""

import json
import re
import shutil
from pathlib import Path

__all__ = ["is_whole", "last_whole_checkpoint", "remove_torn"]

_NAME = re.compile(r"checkpoint-(\d+)")


def is_whole(checkpoint: Path, world_size: int = 1) -> bool:
    """Whether every rank finished writing: the trainer's state parses and each rank's random state is there."""
    names = ["rng_state.pth"] if world_size == 1 else [f"rng_state_{rank}.pth" for rank in range(world_size)]
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return all((checkpoint / name).is_file() for name in names)


def last_whole_checkpoint(folder: Path, world_size: int = 1) -> Path | None:
    whole = [path for path in _checkpoints(folder) if is_whole(path, world_size)]
    return max(whole, key=_step, default=None)


def remove_torn(folder: Path, after: Path | None) -> list[Path]:
    """Delete the checkpoints newer than `after`, which are torn; the Trainer would take them for whole."""
    torn = [path for path in _checkpoints(folder) if after is None or _step(path) > _step(after)]
    for path in torn:
        shutil.rmtree(path)
    return torn


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])
