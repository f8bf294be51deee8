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
Roots = list[tuple[str, Path]]
"""(prefix of the runs' names, folder to look in)."""
_SKIPPED = ("pools", "exact", "final", EVENTS, "base-pools", "completions")


class RunFolders:
    """Folders by the name of the run, searched again every few seconds. Safe to use from several threads."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._searched = -RESCAN_SECONDS

    def all(self) -> dict[str, Path]:
        with self._lock:
            if time.monotonic() - self._searched >= RESCAN_SECONDS:
                found: dict[str, Path] = {}
                for prefix, root in self.roots:
                    for name, path in _folders(prefix, root):
                        found[name if found.get(name, path) == path else str(path)] = path
                self._found, self._searched = dict(sorted(found.items())), time.monotonic()
            return self._found

    def event_runs(self, folder: Path) -> list[str]:
        """What TensorBoard may call the run of this folder: the path of its event files below a root.

        Its runs and ours are not the same: it has one for each folder with event files, named by the path.
        """
        names = []
        for prefix, root in self.roots:
            for place in (folder / EVENTS, folder):
                if place.is_relative_to(root.absolute()):
                    below = place.relative_to(root.absolute()).as_posix()
                    names.append(os.path.join(prefix, below) if prefix else below)  # noqa: PTH118 as TensorBoard does
                    if prefix and below == ".":
                        names.append(prefix)  # as `offleash view` has it
        return names


def log_roots(logdir: str | None, logdir_spec: str | None) -> Roots:
    """The folders that TensorBoard was started with."""
    if logdir_spec:
        parts = logdir_spec.split(",")
        pairs = [part.split(":", 1) if ":" in part and not part.startswith("/") else ("", part) for part in parts]
        return [(name, Path(path).expanduser()) for name, path in pairs]
    return [("", Path(logdir).expanduser())] if logdir else []


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
