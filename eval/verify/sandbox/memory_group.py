"""One ceiling on the memory of all processes of a trial together: a control group, where we may make one.

Limits on a process (`limits`) add up over its children, and polling what is resident sees a bomb a moment late. The
kernel counts a control group exactly, file pages in memory included. Version 2 is used where the memory controller is
handed down to our group, version 1 where it is mounted and writable; else there is none, and the other limits stand.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_CEILINGS = ("memory.max", "memory.limit_in_bytes")  # of version 2, of version 1
_NO_SWAP = "memory.swap.max"
_SECONDS_TO_EMPTY = 2.0


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path | None]:
    """A new group with this ceiling in bytes, removed at the end; None where there cannot be one."""
    made = next((group for parent in _parents() if (group := _make(parent, limit))), None)
    try:
        yield made
    finally:
        if made is not None:
            _remove(made)


def enter(group: Path) -> None:
    """Move this process into a group; what it forks afterwards is born there."""
    (group / "cgroup.procs").write_text("0")


def _parents() -> Iterator[Path]:
    """Our own groups: of version 2, then of the memory controller of version 1."""
    with contextlib.suppress(OSError):
        mine = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        for kind, options in (("cgroup2", ""), ("cgroup", "memory")):
            for _, target, found, flags, *_ in mounts:
                if found == kind and (not options or options in flags.split(",")):
                    yield from (Path(target + path) for _, names, path in mine if options in names.split(","))


def _make(parent: Path, limit: int) -> Path | None:
    group = parent / f"offleash-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError:
        return None
    for name in _CEILINGS:
        with contextlib.suppress(OSError):
            if (group / name).exists():  # version 2 hands it down only if the parent says so
                (group / name).write_text(str(limit))
                if (group / _NO_SWAP).exists():
                    (group / _NO_SWAP).write_text("0")
                return group
    _remove(group)
    return None


def _remove(group: Path) -> None:
    """It must be empty: the killed processes leave it within moments."""
    end = time.monotonic() + _SECONDS_TO_EMPTY
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)
