"""The checkpoints in a run's folder: which there are, whether one is complete, and which are to be measured.

A checkpoint is any Hugging Face folder, of a model or of a PEFT adapter, whose path below the run's folder names a
step: `checkpoint-50` (ours and TRL's), `step_50`, `weights/step_50`, `global_step_50/actor/huggingface`, `50`.
"""

import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from offleash.callbacks.watch.sealed import SEAL, is_readable, trainer_state
from offleash.eval.errors import ConfigError

Files = dict[str, list[int]]
"""Size and time of change (ns) of each file: what tells one state of a checkpoint from another without reading it."""

DEEP = 3
"""How many folders below the run's one may be."""
_NAMES = ("step", "checkpoint", "ckpt", "iter", "completions")
_DIGITS = re.compile(r"\d+")
_TRAINING_ONLY = ("optimizer*", "scheduler*", "rng_state*", "training_args.bin", "global_step*", "scaler.pt", SEAL)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")


class Checkpoint(NamedTuple):
    step: int
    path: Path


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """All below a folder, complete or not, oldest first. Raises ConfigError if two are of one step."""
    return by_step(folder, _model_folders(folder, DEEP))


def by_step(folder: Path, paths: Iterable[Path]) -> list[Checkpoint]:
    """Those paths below a folder that name a step, in its order. Raises ConfigError if two are of one step."""
    found: dict[int, Path] = {}
    for path in paths:
        step = step_of(path.relative_to(folder).with_suffix(""))
        if step is None:
            continue
        other = found.setdefault(step, path)
        if other.resolve() != path.resolve():  # a link to it is the same one
            raise ConfigError(f"{other} and {path} are both of step {step}: watch a folder that holds one of them")
    return [Checkpoint(*item) for item in sorted(found.items())]


def _model_folders(folder: Path, deep: int) -> Iterator[Path]:
    """In the order of their names; nothing is looked for inside a model's folder."""
    try:
        inner = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:  # it was removed while we looked
        return
    for path in inner:
        if is_own(path.name):
            continue
        if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
            yield path
        elif deep > 1:
            yield from _model_folders(path, deep - 1)


def step_of(path: Path) -> int | None:
    """The step that a path names, in its innermost part that names one."""
    found = [step for part in path.parts if (step := _named(part)) is not None]
    return found[-1] if found else None


def _named(part: str) -> int | None:
    """The last number of a name like `checkpoint-200`, `global_step_50` or `100`; after it only `_words` may stand."""
    numbers = list(_DIGITS.finditer(part))
    if not numbers:
        return None
    before, after = part[: numbers[-1].start()], part[numbers[-1].end() :]
    tail = before[numbers[-2].end() :] if len(numbers) > 1 else before
    is_named = not before or any(name in tail.lower() for name in _NAMES)
    return int(numbers[-1][0]) if is_named and (not after or after.startswith("_")) else None


def is_own(name: str) -> bool:
    """Whether a folder of this name is never looked into: hidden ones, and those that a monitor writes."""
    return name.startswith(".") or name in ("watch", "pools", "base-pools", "tensorboard")


def files_of(checkpoint: Path) -> Files:
    """Of the files that a model needs. Raises FileNotFoundError if one vanishes while we look."""
    files = sorted(path for path in checkpoint.iterdir() if is_of_model(path.name) and not path.is_dir())
    stats = {path.name: path.stat() for path in files}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def is_of_model(name: str) -> bool:
    """False for what only training needs, and for what lies in subfolders."""
    return "/" not in name and not any(fnmatch(name, pattern) for pattern in _TRAINING_ONLY)


def what_is_missing(checkpoint: Path) -> str | None:
    """Why a checkpoint is not complete, None if it is: the Trainer writes its state last, others may still be at it.

    Raises FileNotFoundError if it vanishes while we look.
    """
    names = [path.name for path in checkpoint.iterdir() if path.is_file() and is_of_model(path.name)]
    weights = [name for name in names if any(fnmatch(name, pattern) for pattern in _WEIGHTS)]
    if not weights:
        return "it has no weights"
    if _is_of_trainer(checkpoint) and trainer_state(checkpoint) is None:
        return "trainer_state.json is missing"
    unreadable = (name for name in sorted(names) if not _is_complete(checkpoint / name))
    return next((f"{name} is incomplete" for name in unreadable), None)


def _is_of_trainer(checkpoint: Path) -> bool:
    return checkpoint.name.startswith("checkpoint-") or (checkpoint / "training_args.bin").exists()


def is_settled(checkpoint: Path) -> bool:
    """Whether nothing is written after its last file, so that one look is enough: the Trainer's state says so."""
    return _is_of_trainer(checkpoint)


def _is_complete(path: Path) -> bool:
    return zipfile.is_zipfile(path) if path.suffix == ".bin" else is_readable(path)


def is_last(checkpoint: Path) -> bool:
    """Whether the Trainer has no further step to take."""
    state = trainer_state(checkpoint)
    return state is not None and 0 < (state.get("max_steps") or 0) <= state["global_step"]


def chosen(found: Sequence[Checkpoint], *, every: int, behind: int | None, order: str) -> list[Checkpoint]:
    """Those to be measured, in order: every so many steps and the last of a run, among the newest `behind`."""
    due = [one for one in found if one.step % every == 0 or is_last(one.path)]
    due = due if behind is None else due[-behind:]
    return due if order == "oldest" else due[::-1]
