"""One process at a time in a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offleash.eval.console import say
from offleash.eval.errors import ConfigError

LOCK = ".lock"


def take(folder: Path, *, wait: bool = False) -> int | None:
    """Lock a folder, creating it if needed; None if another process holds the lock and we do not `wait` for it.

    Returns the open file descriptor. The lock is released when the last process that inherited it ends. (filelock
    keeps its descriptor private, and a sweep passes this one on to its runs.)
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write in {folder}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:  # some network file systems have no locks
        say(f"offleash: WARNING: {folder} cannot be locked ({error.strerror}): start no other run in it")
    return lock


def hold(folder: Path, message: str) -> int:
    """As `take`; raises ConfigError with `message` if another process holds the lock."""
    lock = take(folder)
    if lock is None:
        raise ConfigError(message)
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
def turn(folder: Path) -> Iterator[None]:
    """Locked for as long as the body runs, after those who came before."""
    lock = take(folder, wait=True)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)
