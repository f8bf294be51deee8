"""One process at a time in a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.storage import is_stored

LOCK = ".lock"


def hold(folder: Path, message: str) -> int:
    """Lock a folder, creating it if needed; raise ConfigError with `message` if another process holds the lock.

    Returns the open file descriptor. The lock is released when the last process that inherited it ends. (filelock
    keeps its descriptor private, and a sweep passes this one on to its runs.)
    """
    lock = try_hold(folder)
    if lock is None:
        raise ConfigError(message)
    return lock


def try_hold(folder: Path) -> int | None:
    """As `hold`; None if another process holds the lock."""
    if is_stored(folder):
        say(f"offleash: {folder} cannot be locked, storage has no locks: start no other run in it", error=True)
        return os.open(os.devnull, os.O_RDONLY)
    lock = _opened(folder, LOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:  # some network file systems have no locks
        say(f"offleash: WARNING: {folder} cannot be locked ({error.strerror}): start no other run in it")
    return lock


@contextmanager
def held(folder: Path, message: str) -> Iterator[None]:
    """As `hold`, for as long as the body runs."""
    lock = hold(folder, message)
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def awaited(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock called `name`, for something short: a process that finds it taken waits."""
    if is_stored(folder):
        yield
        return
    lock = _opened(folder, name)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            say(f"offleash: WARNING: {folder} cannot be locked ({error.strerror}): start no other run in it")
        yield
    finally:
        os.close(lock)


def _opened(folder: Path, name: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / name, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write in {folder}: {error.strerror}") from error
