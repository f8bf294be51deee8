"""What binds every process that runs for a verdict, in a sandbox or not: resource limits, and ways to end it."""

import contextlib
import ctypes
import functools
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of every process inside; `processes` counts all of them together, threads included."""

    cpu_seconds: int = 60
    memory_bytes: int = 1 << 30
    processes: int = 16
    file_bytes: int = 16 << 20
    open_files: int = 64
    scratch_bytes: int = 32 << 20


def set_limits(limits: Limits) -> None:
    values = {
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
    }
    for kind, wanted in values.items():
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def spawn_unconfined(main: Callable[[], None], *, limits: Limits, environment: Mapping[str, str]) -> int:
    """Run `main` in its own session and a temporary folder, with limits and a new environment, and no sandbox.

    For machines without namespaces, when the user insists. Orphans are adopted, so that `end_children` finds them.
    """
    pid = os.fork()
    if pid:
        return pid
    folder, code = tempfile.mkdtemp(prefix="offleash-"), 70
    try:
        die_with_parent()
        os.setsid()
        if sys.platform == "linux":
            prctl(PR_SET_NO_NEW_PRIVS, 1)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.environ.clear()
        os.environ.update(environment)
        set_limits(replace(limits, processes=limits.processes + own_processes()))
        os.chdir(folder)
        main()
        code = 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)  # also after an exception: a forked child must not return into its parent's code


def own_processes() -> int:
    """How many processes our user has: without a namespace the limit on processes counts all of them."""
    count = 0
    for status in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += status.stat().st_uid == os.getuid()
    return count


def end_children() -> None:
    """Kill our children and the orphans we adopted until there are none left."""
    while True:
        try:
            children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)
        except (ChildProcessError, FileNotFoundError):
            return


def kill_and_reap(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | str | bytes | None) -> None:
    """A libc function that returns -1 and sets errno on failure."""
    texts = [os.fsencode(a) if isinstance(a, str) else a for a in arguments]
    if getattr(libc(), name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in texts)) == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def prctl(option: int, value: int) -> None:
    call("prctl", option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill us when the thread that forked us ends. Only for children of processes with one thread."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
