"""One process at a time works in a folder. The lock goes with the last process that holds it, however that ends."""

import fcntl
import os
from pathlib import Path

from offleash.eval.errors import ConfigError

FILE = ".lock"


def hold(folder: Path, told: str) -> int:
    """The open lock of a folder, which is made if need be; ConfigError with `told` if another process holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / FILE, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write in {folder}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigError(told) from error
    except OSError as error:  # some network file systems have no locks
        print(f"offleash: WARNING: {folder} cannot be locked ({error.strerror}): start nothing else in it", flush=True)
    return lock
