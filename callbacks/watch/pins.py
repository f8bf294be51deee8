"""One measured step is one policy version: a checkpoint is pinned before it is sampled.

The trainer may delete a checkpoint (`save_total_limit`) or write it again (a resumed run) at any time. Its files are
linked into a folder of our own, or copied where that is impossible, all or none. A link shows what is written into the
file later: a pin therefore knows the size and time of each of its files, and one that changed is not used.
"""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from offleash.callbacks.watch.checkpoints import Checkpoint, Files, files_of, is_of_model
from offleash.callbacks.watch.sealed import SEAL, broken_seal, is_sealed
from offleash.eval.engines.model import ModelSource
from offleash.eval.errors import ConfigError
from offleash.eval.files import atomic_path, remove_leftovers, write_atomic
from offleash.eval.fingerprint import weights_fingerprint

PINNED, NOTE = "pinned", "watch.json"


class Pin(NamedTuple):
    """A version of a checkpoint that stays while it is measured."""

    path: Path
    source: Path
    """The checkpoint."""
    files: Files
    """Of the checkpoint, when it was pinned."""
    held: Files
    """Of the pin itself."""

    @property
    def is_unchanged(self) -> bool:
        return {name: state for name, state in files_of(self.path).items() if name != NOTE} == self.held


def pin(checkpoint: Checkpoint, folder: Path, base: ModelSource) -> Pin | None:
    """The checkpoint's files under `folder`/pinned; None if they were written to meanwhile.

    An adapter is put on the `base`. Raises FileNotFoundError if the checkpoint vanishes, ConfigError if it is damaged
    or adapts another model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    files = files_of(checkpoint.path)
    with atomic_path(folder / PINNED) as temp:
        temp.mkdir()
        for name in (*files, *([SEAL] if is_sealed(checkpoint.path) else [])):
            _link_or_copy(checkpoint.path / name, temp / name)
        if files_of(checkpoint.path) != files:
            return None
        if is_sealed(temp) and (damage := broken_seal(temp, is_of_model)):
            raise ConfigError(f"{checkpoint.path} is damaged ({damage})")
        if (temp / "adapter_config.json").exists():
            _put_on_base(temp / "adapter_config.json", base, checkpoint.path)
        note = {"source": str(checkpoint.path), "files": files, "held": files_of(temp)}
        write_atomic(temp / NOTE, json.dumps(note).encode())
    return pinned(folder)


def pinned(folder: Path) -> Pin | None:
    """What an earlier process pinned there; None if there is nothing, or it was changed since."""
    try:
        note = json.loads((folder / PINNED / NOTE).read_text())
        found = Pin(folder / PINNED, Path(note["source"]), note["files"], note["held"])
        return found if found.is_unchanged else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def unpin(folder: Path) -> None:
    shutil.rmtree(folder / PINNED, ignore_errors=True)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _put_on_base(path: Path, base: ModelSource, checkpoint: Path) -> None:
    """An adapter names its base as the trainer saw it, which may be a path on another machine."""
    config = json.loads(path.read_text(encoding="utf-8"))
    named = str(config.get("base_model_name_or_path") or "")
    if named == base.path:
        return
    if Path(named).is_dir():
        is_other = weights_fingerprint(named) != base.weights
    else:  # two names of the hub; a path of another machine cannot be looked into
        is_other = not Path(base.path).is_dir() and not named.startswith(("/", ".", "~")) and named.count("/") == 1
    if is_other:
        raise ConfigError(f"{checkpoint} adapts {named}, which is not the base {base.name}: give --base {named}")
    write_atomic(path, json.dumps({**config, "base_model_name_or_path": base.path}).encode())
