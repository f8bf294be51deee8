"""Locks that a killed compilation left behind: torch waits for them without a word and without a limit.

Read against torch 2.13 (`utils/cpp_extension.py`, `utils/file_baton.py`): DeepSpeed's first run compiles its kernels
under a file `lock` in the extension's folder.
"""

import os
import time
from pathlib import Path

OLD_SECONDS = 600


def old_locks() -> list[Path]:
    """Locks older than ten minutes; a kernel compiles in one or two."""
    from torch._appdirs import user_cache_dir

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or user_cache_dir(appname="torch_extensions"))
    return [path for path in sorted([*root.glob("*/lock"), *root.glob("*/*/lock")]) if _age(path) > OLD_SECONDS]


def locked(path: Path) -> str:
    """What to say of an old lock."""
    return (
        f"{path} is {_age(path) / 60:.0f} min old, and DeepSpeed waits for it without a limit: if nothing is "
        f"compiling, rm {path}"
    )


def report_old_locks() -> None:
    """Say so before a DeepSpeed run starts: what it needs may be compiled as early as its processes join."""
    asked = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
    if asked and os.environ.get("LOCAL_RANK", "0") == "0":
        for path in old_locks():
            print(f"offleash: WARNING: {locked(path)}", flush=True)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # gone in between
        return 0.0
