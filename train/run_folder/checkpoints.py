"""Which checkpoint a run continues from: the last sound one, written by as many processes as there are now.

The Trainer writes a checkpoint file by file, its state last: a kill in between leaves an incomplete folder, which is
removed. Every process writes its random state, and the first does not wait for the others before it writes the
Trainer's. A checkpoint that was complete and no longer is what was written is damaged: it is set aside, never removed.
"""

import shutil
import zipfile
from pathlib import Path
from typing import NamedTuple

from offleash.callbacks.watch.sealed import SEAL, is_sealed, trainer_state
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.files import atomic_path, remove_leftovers
from offleash.train.run_folder.integrity import RANDOM, damage

PREFIX = "checkpoint-"
TRAINING_ONLY = (
    *("optimizer*", "scheduler*", "rng_state*", "trainer_state.json", "training_args.bin", "global_step*"),
    *("entropy_ctrl_state.json", "reference.safetensors", "reference_reset.json", "dynamic_sampling.json"),
    *("outcome_counts.json", SEAL),
)


class Choice(NamedTuple):
    checkpoint: Path | None
    """None if the run starts from scratch."""
    incomplete: tuple[Path, ...] = ()
    damaged: tuple[Path, ...] = ()
    """Both later than the checkpoint."""


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders of a run, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir()]
    return sorted((path for path in found if path.name.removeprefix(PREFIX).isdecimal()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(PREFIX))


def last_complete_checkpoint(folder: Path, processes: int | None = None) -> Path | None:
    """The last checkpoint that was written completely, by all of the run's processes if their number is known.

    Files are not looked into, apart from the Trainer's state: `choose_checkpoint` does that.

    If no checkpoint has the files of all processes, the cause is not a kill (each node may have its own disk): then it
    is the last one, which `check_resumable` rejects.
    """
    readable = [path for path in checkpoints(folder) if trainer_state(path) is not None]
    complete = [path for path in readable if not _lacks_ranks(path, processes)]
    return next(reversed(complete or readable), None)


def choose_checkpoint(folder: Path, processes: int | None = None) -> Choice:
    """The last complete checkpoint that is not damaged. Changes nothing; every damaged one is reported.

    Raises ConfigError if there are checkpoints and all are damaged: starting over is for the user to decide.
    """
    complete = last_complete_checkpoint(folder, processes)
    incomplete: list[Path] = []
    damaged: dict[Path, str] = {}
    for path in reversed(checkpoints(folder)):
        if not is_sealed(path) and (
            trainer_state(path) is None or (path != complete and _lacks_ranks(path, processes))
        ):
            incomplete.append(path)
        elif reason := damage(path) or _other_step(path):
            damaged[path] = reason
        else:
            for broken, why in damaged.items():
                say(f"offleash: WARNING: {broken} is damaged ({why}): falling back to {path.name}")
            return Choice(path, tuple(incomplete), tuple(damaged))
    if damaged:
        told = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
        raise ConfigError(
            f"no checkpoint in {folder} can be loaded ({told}): restore it, or choose another --output_dir"
        )
    return Choice(None, tuple(incomplete))


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


def clear_later(choice: Choice) -> None:
    """Remove incomplete checkpoints and set damaged ones aside: the Trainer would take both for complete ones."""
    for path in choice.incomplete:
        say(f"offleash: {path} is incomplete and is removed")
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    for path in choice.damaged:
        say(f"offleash: {path} is damaged and is kept as {set_aside(path).name}")


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder to a name that nothing else looks for."""
    names = (path.with_name(f"damaged-{number}-{path.name}") for number in range(1, 10_000))
    return path.rename(next(name for name in names if not name.exists()))


def best_checkpoint(folder: Path, last: Path) -> Path:
    """The one that `load_best_model_at_end` takes the final model from, as the last one remembers it.

    Raises ConfigError if it is gone: another model must not take its place unnoticed.
    """
    named = (trainer_state(last) or {}).get("best_model_checkpoint")
    best = folder / Path(named).name if named else last
    if not best.is_dir():
        raise ConfigError(f"{best}, the best checkpoint and the source of the final model, is missing: restore it")
    return best


def export_final(checkpoint: Path, target: Path) -> None:
    """The model of a checkpoint without what only training needs, written atomically."""
    remove_leftovers(target.parent)
    with atomic_path(target) as temporary:
        shutil.copytree(checkpoint, temporary, ignore=shutil.ignore_patterns(*TRAINING_ONLY))


def _other_step(checkpoint: Path) -> str | None:
    """A renamed folder would be continued from one step and trimmed to another."""
    return "its trainer_state.json is not that of this step" if trainer_state(checkpoint) is None else None


def _lacks_ranks(checkpoint: Path, processes: int | None) -> bool:
    """Whether some processes, but not all, wrote their random state."""
    return 0 < _random_states(checkpoint) < (processes or 0)


def _random_states(checkpoint: Path) -> int:
    """How many processes wrote theirs completely: torch saves zip archives, whose directory comes last."""
    return sum(zipfile.is_zipfile(path) for path in checkpoint.glob(RANDOM))
