"""Where the monitored runs are below TensorBoard's log folder. Light: TensorBoard asks often, from its start on.

A run is a folder with `support.json`.
"""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from offleash.eval.comparison.run import RECORD

EVENTS = "tensorboard"
"""The folder of the event files inside a run's."""
RESCAN_SECONDS = 5.0
MAX_DEPTH = 6
_SKIPPED = ("pools", "exact", "final", EVENTS, "base-pools", "completions")


class RunFolders:
    """Folders by the name of the run, searched again every few seconds. Safe to use from several threads."""

    def __init__(self, roots: dict[str, Path]) -> None:
        """`roots`: a prefix of the runs' names -> the folder to look in."""
        self.roots = roots
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._searched = -RESCAN_SECONDS

    def all(self) -> dict[str, Path]:
        with self._lock:
            if time.monotonic() - self._searched >= RESCAN_SECONDS:
                found = {name: path for prefix, root in self.roots.items() for name, path in _folders(prefix, root)}
                self._found, self._searched = dict(sorted(found.items())), time.monotonic()
            return self._found


def log_roots(logdir: str | None, logdir_spec: str | None) -> dict[str, Path]:
    """The folders that TensorBoard was started with, by the prefix of their runs' names."""
    if logdir_spec:
        pairs = [part.partition(":")[::2] if ":" in part else ("", part) for part in logdir_spec.split(",")]
        return {name: Path(path).expanduser() for name, path in pairs}
    return {"": Path(logdir).expanduser()} if logdir else {}


def _folders(prefix: str, root: Path) -> Iterator[tuple[str, Path]]:
    """(name, folder) of every run below a root; the root may be a run itself, or a run's folder of event files."""
    root = root.absolute()
    if root.name == EVENTS and (root.parent / RECORD).is_file():
        yield prefix or root.parent.name, root.parent
        return
    for here, below, files in os.walk(root):
        path = Path(here)
        if RECORD in files:
            inside = path.relative_to(root).as_posix()
            yield "/".join(part for part in (prefix, inside) if part not in ("", ".")) or path.name, path
            below.clear()
        deep = len(path.relative_to(root).parts) >= MAX_DEPTH
        below[:] = [] if deep else [n for n in below if n not in _SKIPPED and not n.startswith((".", "checkpoint-"))]
