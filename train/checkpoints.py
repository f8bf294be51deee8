"""Which checkpoint a run continues from: the last one that was written whole, by as many processes as there are now.

The Trainer writes a checkpoint file by file, its state last: a kill in between leaves a folder that cannot be loaded.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError

__all__ = ["checkpoints", "export_final", "last_whole_checkpoint", "remove_torn", "require_resumable", "trainer_state"]

_NAME = re.compile(r"checkpoint-(\d+)")
TRAINING_ONLY = (
    *("optimizer*", "scheduler*", "rng_state*", "trainer_state.json", "training_args.bin", "global_step*"),
    *("entropy_ctrl_state.json", "reference.safetensors", "reference_reset.json", "dynamic_sampling.json"),
    "outcome_counts.json",
)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders of a run, oldest first."""
    return sorted((p for p in folder.glob("checkpoint-*") if p.is_dir() and _NAME.fullmatch(p.name)), key=_step)


def trainer_state(checkpoint: Path) -> dict[str, Any] | None:
    """The Trainer's state, None if the checkpoint is torn."""
    try:
        state: dict[str, Any] = json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return None
    return state


def last_whole_checkpoint(folder: Path) -> Path | None:
    whole = [path for path in checkpoints(folder) if trainer_state(path) is not None]
    return whole[-1] if whole else None


def require_resumable(checkpoint: Path, world_size: int) -> None:
    """A whole checkpoint may still not fit this run; it is refused, never thrown away."""
    found = len(list(checkpoint.glob("rng_state*.pth")))
    if not found:
        raise ConfigError(f"{checkpoint} has no optimizer and random state (save_only_model): it cannot be continued")
    if found != world_size:
        raise ConfigError(
            f"{checkpoint} was written by {found} processes and cannot be continued on the same trajectory by "
            f"{world_size}: launch as many, or remove it to continue from an earlier one"
        )


def remove_torn(folder: Path) -> list[Path]:
    """Delete the checkpoints that were not written to their end; the Trainer would take them for whole."""
    torn = [path for path in checkpoints(folder) if trainer_state(path) is None]
    for path in torn:
        shutil.rmtree(path)
    return torn


def export_final(checkpoint: Path, target: Path) -> None:
    """The model of a checkpoint without what only training needs; whole or not at all."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(checkpoint, temporary, ignore=shutil.ignore_patterns(*TRAINING_ONLY))
    temporary.replace(target)


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])
