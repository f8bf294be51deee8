"""Which checkpoint a run continues from: the last complete one, written by as many processes as there are now.

The Trainer writes a checkpoint file by file, its state last: a kill in between leaves a folder that cannot be loaded.
Every process writes its random state, and the first does not wait for the others before it writes the Trainer's.
"""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.files import atomic_path, remove_leftovers

PREFIX = "checkpoint-"
TRAINING_ONLY = (
    *("optimizer*", "scheduler*", "rng_state*", "trainer_state.json", "training_args.bin", "global_step*"),
    *("entropy_ctrl_state.json", "reference.safetensors", "reference_reset.json", "dynamic_sampling.json"),
    "outcome_counts.json",
)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders of a run, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir()]
    return sorted((path for path in found if path.name.removeprefix(PREFIX).isdecimal()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(PREFIX))


def trainer_state(checkpoint: Path) -> dict[str, Any] | None:
    """The Trainer's state, None if the checkpoint is incomplete."""
    try:
        state: dict[str, Any] = json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return None
    return state


def last_complete_checkpoint(folder: Path, processes: int | None = None) -> Path | None:
    """The last checkpoint that was written completely, by all of the run's processes if their number is known.

    If no checkpoint has the files of all processes, the cause is not a kill (each node may have its own disk): then it
    is the last one, which `check_resumable` rejects.
    """
    readable = [path for path in checkpoints(folder) if trainer_state(path) is not None]
    complete = [path for path in readable if not 0 < _random_states(path) < (processes or 0)]
    return next(reversed(complete or readable), None)


def check_resumable(checkpoint: Path, world_size: int, sharding: str = "none") -> None:
    """Raise ConfigError if a complete checkpoint does not fit this run. `sharding` as in launch.py."""
    found = _random_states(checkpoint)
    if not found:
        raise ConfigError(f"{checkpoint} has no optimizer and random state (save_only_model): it cannot be resumed")
    if found != world_size:
        raise ConfigError(
            f"{checkpoint} was written by {found} processes and cannot be resumed on the same trajectory by "
            f"{world_size}: launch {found}, or remove it to continue from an earlier one"
        )
    # The Trainer would silently start with a new optimizer and learning rate.
    optimizer = "global_step*" if sharding.startswith("zero") else "optimizer*"
    if not any(checkpoint.glob(optimizer)):
        raise ConfigError(
            f"{checkpoint} has no optimizer state that this launch (sharding {sharding}) can read (no "
            f"{optimizer}): launch with the accelerate config it was written under"
        )


def remove_incomplete(folder: Path, processes: int | None = None) -> list[Path]:
    """Delete incomplete checkpoints, which the Trainer would take for complete ones."""
    last = last_complete_checkpoint(folder, processes)
    incomplete = [
        path
        for path in checkpoints(folder)
        if trainer_state(path) is None or (last is not None and step_of(path) > step_of(last))
    ]
    for path in incomplete:
        shutil.rmtree(path)
    return incomplete


def export_final(checkpoint: Path, target: Path) -> None:
    """The model of a checkpoint without what only training needs, written atomically."""
    remove_leftovers(target.parent)
    with atomic_path(target) as temporary:
        shutil.copytree(checkpoint, temporary, ignore=shutil.ignore_patterns(*TRAINING_ONLY))


def _random_states(checkpoint: Path) -> int:
    """How many processes wrote theirs completely: torch saves zip archives, whose directory comes last."""
    return sum(zipfile.is_zipfile(path) for path in checkpoint.glob("rng_state*.pth"))
