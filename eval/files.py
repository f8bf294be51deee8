"""Files and folders that are complete or absent: written under a hidden name, flushed to disk, then renamed into place.

A writer killed at any moment leaves at most a hidden temporary file, which no reader looks at.
"""

import contextlib
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.storage import appears_complete, is_stored

_MINUTE, _DAY = 60.0, 86_400.0
TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.(?P<pid>\d{1,9})\.(?P<host>.+)\.tmp")
"""The names of files that are being written."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A hidden name beside `path` for a file or a folder: renamed to `path` at the end, removed if the body raises."""
    temp = _hidden(path.parent)
    try:
        yield temp
        put_in_place(temp, path)
    finally:
        _remove(temp)


def put_in_place(hidden: Path, path: Path) -> None:
    """Rename a complete file or folder, replacing what was there."""
    hidden.replace(path)
    if not is_stored(path):
        _flush_folder(path.parent)


def write_hidden(folder: Path, data: bytes | memoryview) -> Path:
    """A file that no reader looks at, flushed to disk, for `put_in_place`. Raises PoolError as `write_atomic` does."""
    path = _hidden(folder)
    try:
        _write_flushed(path, data)
    except OSError as error:
        _remove(path)
        raise _cannot_write(path, error) from error
    return path


@contextlib.contextmanager
def hidden_mark(folder: Path) -> Iterator[Path]:
    """A hidden empty file while the body runs: a process of another machine that sees it shares the folder."""
    path = write_hidden(folder, b"")
    try:
        yield path
    finally:
        _remove(path)


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path`, replacing what was there. On any failure nothing is left behind.

    Raises PoolError (one line) for a full disk, a missing permission and the like.
    """
    try:
        if appears_complete(path):
            path.write_bytes(data)
            return
        with atomic_path(path) as temp:
            _write_flushed(temp, data)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _hidden(folder: Path) -> Path:
    return folder / f".{uuid.uuid4().hex}.{os.getpid()}.{socket.gethostname()}.tmp"


def _write_flushed(path: Path, data: bytes | memoryview) -> None:
    if is_stored(path):
        path.write_bytes(data)
        return
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _cannot_write(path: Path, error: OSError) -> PoolError:
    reason = error.strerror or str(error)
    return PoolError(f"cannot write {path}: {reason}; make room or choose another folder, then resume")


def check_is_file(path: Path) -> None:
    """Raises PoolError if the path exists and is not a regular file: opening a pipe would block."""
    with contextlib.suppress(OSError):  # opening it will report the error
        if not stat.S_ISREG(path.stat().st_mode):
            raise PoolError(f"{path} is not a regular file but a folder, a pipe or a device: move it away")


def remove_leftovers(folder: Path) -> None:
    """Remove what dead writers left behind. Others may be writing here, on this machine or another one.

    Dead means: a process of this machine that no longer runs and has not written for a minute (machines in containers
    can share a name, so a process number alone proves nothing), or nobody has written for a day.
    """
    for path in folder.glob(".*.tmp"):
        writer = TEMPORARY.fullmatch(path.name)
        if writer is None:
            continue
        with contextlib.suppress(OSError):
            age = time.time() - (path.stat().st_mtime or time.time())
            is_gone = writer["host"] == socket.gethostname() and not psutil.pid_exists(int(writer["pid"]))
            if age > _DAY or (age > _MINUTE and is_gone):
                _remove(path)


def _remove(path: Path) -> None:
    if not is_stored(path):
        shutil.rmtree(path, ignore_errors=True)  # does nothing to a file
    with contextlib.suppress(OSError):
        path.unlink()


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the file system can: some network file systems cannot flush a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def check_writable(path: Path) -> None:
    """Raise ConfigError if no file can be written there. For commands that work long before they write."""
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
