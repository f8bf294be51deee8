"""The parent of workers: a fresh process that imports the job's library once and forks workers on request.

Started by `workers.WorkerPool`, never imported by users. It owns no thread and runs no job, so it always answers. The
standard library's fork server is not used because it imports the user's `__main__` again in every worker.

Control messages are JSON lines over a Unix socket: {"spawn": 1} with the worker's socket attached, {"kill": pid}.
Workers speak length-prefixed JSON: nothing that a worker sends is ever unpickled, since a worker may have run hostile
code.
"""

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from offleash.eval.verify.sandbox import confine
from offleash.eval.verify.sandbox.limits import Limits, die_with_parent, kill_and_reap
from offleash.eval.verify.sandbox.program_server import describe, pack, read_frame

MAX_FRAME = 64 << 20
ORPHAN_CHECK_SECONDS = 2.0


def main() -> None:
    """Entry point: argv is the control socket's descriptor and the settings as JSON."""
    control, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    sys.path[:] = settings["path"]
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the pool decides when we end, not the terminal
        signal.signal(name, signal.SIG_IGN)
    if not settings["confined"]:
        os.setsid()
        serve(control, settings, os.getppid())
        return
    processes = settings["workers"] + 4
    limits = Limits(cpu_seconds=1 << 30, memory_bytes=1 << 46, processes=processes, open_files=1024, file_bytes=1 << 20)
    parent = os.getppid()
    try:
        pid = confine.spawn(
            lambda: serve(control, settings),
            readable=settings["readable"],
            limits=limits,
            keep=[control],
            environment=dict(os.environ),  # the pool has already emptied it of anything worth reading
        )
    except confine.SandboxError as error:
        with contextlib.suppress(OSError):
            os.write(control, pack_line({"failed": f"the sandbox could not be built: {error}"}))
        sys.exit(1)
    os.close(control)
    guard(pid, parent)


def guard(pid: int, parent: int) -> None:
    """Outside the sandbox: wait for it, and end it if the parent is gone without closing the socket."""
    ended = os.pidfd_open(pid)
    while not select.select([ended], [], [], ORPHAN_CHECK_SECONDS)[0]:
        if os.getppid() != parent:
            break
    kill_and_reap(pid)


def serve(control: int, settings: dict[str, Any], parent: int | None = None) -> None:
    """Answer until the other end closes; then kill every worker."""
    channel = socket.socket(fileno=control)
    workers: set[int] = set()
    try:
        target = load(settings["target"])
    except Exception as error:  # whatever an import can raise is reported to the pool, which raises it
        channel.sendall(pack_line({"failed": f"{type(error).__name__}: {error}"}))
        return
    channel.sendall(pack_line({"ready": os.getpid()}))
    try:
        while True:
            if not select.select([channel], [], [], ORPHAN_CHECK_SECONDS)[0]:
                if parent is not None and os.getppid() != parent:
                    return
                continue
            message, fds, _, _ = socket.recv_fds(channel, 4096, 1)  # one request is under way at a time
            if not message:
                return
            request = json.loads(message)
            if "spawn" in request:
                pid = fork_worker(target, fds[0], channel, settings)
                workers.add(pid)
                channel.sendall(pack_line({"pid": pid}))
            else:
                if request["kill"] in workers:
                    workers.discard(request["kill"])
                    end(request["kill"])
                channel.sendall(pack_line({"killed": request["kill"]}))
    finally:
        for pid in workers:
            end(pid)


def end(pid: int) -> None:
    """Kill a worker with its process group, and reap it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill_and_reap(pid)


def load(target: str) -> Callable[[Any], Any]:
    module, _, name = target.partition(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return function


def fork_worker(target: Callable[[Any], Any], fd: int, channel: socket.socket, settings: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        os.close(fd)
        return pid
    try:
        channel.close()
        with contextlib.suppress(OSError):
            os.setsid()
        die_with_parent()
        limit_worker(settings)
        work(target, socket.socket(fileno=fd))
    except BaseException:  # a forked child must never return into the server's loop; the pool sees the closed socket
        os._exit(70)
    os._exit(0)


def limit_worker(settings: dict[str, Any]) -> None:
    limits = {resource.RLIMIT_AS: settings["memory_bytes"], resource.RLIMIT_CORE: 0}
    if not settings["may_fork"]:
        limits[resource.RLIMIT_NPROC] = 0  # no process, no thread (does not bind root outside the sandbox)
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def work(target: Callable[[Any], Any], channel: socket.socket) -> None:
    """Read a job, run it, write its outcome, until the pool closes the socket."""
    with contextlib.suppress(EOFError):
        while True:
            channel.sendall(run(target, read_frame(channel.recv, MAX_FRAME)))


def run(target: Callable[[Any], Any], job: bytes) -> bytes:
    """The reply repeats the job's number, which no earlier job can have known."""
    request = json.loads(job)
    try:
        return pack({"number": request["number"], "ok": target(request["job"])}, MAX_FRAME)
    except BaseException as error:  # SystemExit and math-verify's TimeoutException are not Exceptions; report them all
        said, memory = ": ".join(describe(error)), isinstance(error, MemoryError)
        return pack({"number": request["number"], "error": said, "memory": memory}, MAX_FRAME)


def pack_line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
