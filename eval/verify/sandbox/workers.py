"""A pool of worker processes that can always be killed: how every slow or dangerous verdict is computed.

A job is JSON in, JSON out, run by one function named "module:function". A job that passes its deadline has its worker
killed (SIGKILL) and replaced; no signal, alarm or thread trick is involved, so it works from any thread and inside
asyncio. Workers are forked by a fresh helper process (`zygote`), never by the caller: a caller that holds CUDA or a
thousand threads is safe. They have a memory limit, an empty environment, may start no process of their own unless told
so, run in a sandbox where the machine has one, are replaced after a number of jobs, and die with the pool even if the
caller is killed.
"""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from offleash.eval.errors import VerifyError
from offleash.eval.registry import library_path
from offleash.eval.verify.sandbox import confine, zygote
from offleash.eval.verify.sandbox.program_server import frame_length, pack

KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "TZ")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
CORES = "OFFLEASH_CORES"
MAX_REPLY = 16 << 20
START_SECONDS, REPLY_SECONDS = 180.0, 30.0
BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2])['path'];"
    "from offleash.eval.verify.sandbox.zygote import main; main()"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one job: its value, or why it has none. "timeout" and "error" say nothing about the answer.

    `exhausted`: it used up its worker's time or memory, or ended the process.
    """

    status: Literal["ok", "timeout", "error"]
    value: Any = None
    message: str = ""
    exhausted: bool = False


def own_cores() -> int:
    """The cores of this process: those that it may use, divided among the processes of a launcher on this machine, and
    no more than the `CORES` that another kind of launcher gave it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cores // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return max(1, min(share, int(os.environ.get(CORES) or share)))


class WorkerPool:
    """`map(jobs)` runs them on up to `workers` processes, each job at most `job_seconds` long.

    By default they are the `own_cores` of the process that calls `map`, to which the pool may have been sent.

    `confined` puts workers in the sandbox where the machine allows it. Processes start at the first `map`. Calls from
    several threads take turns.
    """

    def __init__(
        self,
        target: str,
        *,
        workers: int | None = None,
        job_seconds: float = 5.0,
        memory_bytes: int = 2 << 30,
        recycle: int = 1000,
        confined: bool = True,
        may_fork: bool = False,
    ) -> None:
        if (workers is not None and workers < 1) or recycle < 1 or job_seconds <= 0:
            raise ValueError(f"workers, recycle and job_seconds must be positive: {workers}, {recycle}, {job_seconds}")
        self.target, self.job_seconds, self.recycle = target, job_seconds, recycle
        self._workers = workers
        self._settings = {"memory_bytes": memory_bytes, "may_fork": may_fork, "target": target}
        self._confined = confined
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._zygote: _Zygote | None = None
        self._idle: list[_Worker] = []

    def __getstate__(self) -> dict[str, Any]:
        """On another machine it starts processes of its own."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_zygote", "_idle")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_owner": os.getpid(), "_lock": threading.Lock(), "_zygote": None, "_idle": []}

    @property
    def workers(self) -> int:
        return own_cores() if self._workers is None else self._workers

    def map(self, jobs: Sequence[Any]) -> list[Outcome]:
        """One outcome per job, in order."""
        if not jobs:
            return []
        self._forget_if_forked()
        with self._lock:
            return _Round(self, jobs).run()

    def close(self) -> None:
        """End every process of the pool. A later `map` starts anew."""
        with self._lock:
            self._drop_processes()

    def _forget_if_forked(self) -> None:
        """In a process forked from the pool's owner the processes belong to the owner: start our own."""
        if self._owner != os.getpid():
            self._owner, self._zygote, self._idle, self._lock = os.getpid(), None, [], threading.Lock()

    def _drop_processes(self) -> None:
        for worker in self._idle:
            worker.channel.close()
        self._idle = []
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _take(self) -> "_Worker":
        """An idle worker or a new one; a helper process that died is replaced once."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_quiet():
                return worker
            self._kill(worker)
        for attempt in (1, 2):
            if self._zygote is None:
                self._zygote = self._start()
            try:
                return self._zygote.spawn()
            except OSError as error:
                self._drop_processes()
                if attempt == 2:
                    raise VerifyError(f"workers for {self.target} cannot be started: {error}") from error
        raise AssertionError("unreachable")

    def _start(self) -> "_Zygote":
        """Confined if possible. Where the sandbox does not work, at all or with these libraries, warn."""
        settings = self._settings | {"workers": self.workers}
        reason = confine.unavailable() if self._confined else None
        if self._confined and reason is None:
            try:
                return _Zygote(settings | {"confined": True})
            except VerifyError as error:
                reason = str(error)
        made = _Zygote(settings | {"confined": False})
        if reason is not None:
            warnings.warn(f"workers for {self.target} run without a sandbox: {reason}", RuntimeWarning, stacklevel=2)
        return made

    def _give_back(self, worker: "_Worker") -> None:
        if worker.jobs_done >= self.recycle or worker.worn:
            self._kill(worker)
        else:
            self._idle.append(worker)

    def _kill(self, worker: "_Worker") -> None:
        worker.channel.close()
        if self._zygote is None or worker.parent is not self._zygote:
            return  # its helper is gone, and the worker with it
        try:
            self._zygote.kill(worker.pid)
        except OSError:
            self._drop_processes()

    def _lost_its_parent(self, worker: "_Worker") -> bool:
        """Whether a worker died because its helper did, and not because of its job."""
        return worker.parent is not self._zygote or worker.parent.process.poll() is not None


class _Stale(Exception):
    """A reply to another job: left behind by an earlier, hostile one."""


class _Worker:
    """The pool's end of one worker."""

    def __init__(self, parent: "_Zygote", pid: int, channel: socket.socket) -> None:
        self.parent, self.pid, self.channel = parent, pid, channel
        self.jobs_done = 0
        self.worn = False
        self._number = ""
        self._buffer = bytearray()
        weakref.finalize(self, channel.close)

    def is_quiet(self) -> bool:
        """Alive, and nothing was said out of turn (a hostile job may have left a reply for the next one)."""
        self.channel.setblocking(False)
        try:
            self.channel.recv(1, socket.MSG_PEEK)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    def send(self, job: Any, seconds: float) -> None:
        self._number = os.urandom(8).hex()
        self._buffer.clear()
        self.channel.settimeout(seconds)
        self.channel.sendall(pack({"number": self._number, "job": job}, zygote.MAX_FRAME))
        self.channel.setblocking(False)

    def receive(self) -> Outcome | None:
        """The outcome once it is complete, None before. Raises OSError or ValueError if the worker is unusable."""
        while len(self._buffer) < 4 or len(self._buffer) < 4 + self._length():
            try:
                block = self.channel.recv(1 << 20)
            except BlockingIOError:
                return None
            if not block:
                raise ConnectionError("the worker died (memory limit, crash or exit)")
            self._buffer += block
        self.jobs_done += 1
        return self._outcome(json.loads(bytes(self._buffer[4 : 4 + self._length()])))

    def _length(self) -> int:
        return frame_length(bytes(self._buffer[:4]), MAX_REPLY)

    def _outcome(self, reply: Any) -> Outcome:
        if not isinstance(reply, dict) or ("ok" not in reply and "error" not in reply):
            raise ValueError("the worker's reply is not an outcome")
        if reply.get("number") != self._number:
            raise _Stale
        if "ok" in reply:
            return Outcome("ok", reply["ok"])
        self.worn = bool(reply.get("memory"))
        return Outcome("error", message=str(reply["error"]), exhausted=self.worn)


class _Round:
    """One `map`: which job is where, and until when."""

    def __init__(self, pool: WorkerPool, jobs: Sequence[Any]) -> None:
        self.pool, self.jobs = pool, jobs
        self.waiting = deque(range(len(jobs)))
        self.outcomes: dict[int, Outcome] = {}
        self.busy: dict[_Worker, tuple[int, float]] = {}
        self.repeated: Counter[int] = Counter()
        self.selector = selectors.DefaultSelector()

    def run(self) -> list[Outcome]:
        try:
            while self.waiting or self.busy:
                self._assign()
                self._collect()
                self._kill_late()
        finally:
            for worker in list(self.busy):  # the round was interrupted
                self._finish(worker, Outcome("timeout"), kill=True)
            self.selector.close()
        return [self.outcomes[index] for index in range(len(self.jobs))]

    def _assign(self) -> None:
        while self.waiting and len(self.busy) < self.pool.workers:
            worker = self.pool._take()
            index = self.waiting.popleft()
            self.busy[worker] = (index, time.monotonic() + self.pool.job_seconds)
            self.selector.register(worker.channel, selectors.EVENT_READ, worker)
            try:
                worker.send(self.jobs[index], self.pool.job_seconds)
            except TimeoutError:
                self._finish(worker, Outcome("timeout", message="the worker did not read the job"), kill=True)
            except OSError:
                self._again(worker)  # it died before it had the job
            except ValueError as error:  # longer than a message may be; nothing was sent
                self._finish(worker, Outcome("error", message=str(error)), kill=False)

    def _collect(self) -> None:
        if not self.busy:
            return
        nearest = min(deadline for _, deadline in self.busy.values())
        for key, _ in self.selector.select(max(0.0, nearest - time.monotonic())):
            worker: _Worker = key.data
            try:
                outcome = worker.receive()
            except (_Stale, OSError, ValueError, RecursionError) as error:
                if isinstance(error, _Stale) or (isinstance(error, OSError) and self.pool._lost_its_parent(worker)):
                    self._again(worker)
                else:
                    died = isinstance(error, ConnectionError)
                    outcome = Outcome("error", message=str(error) or type(error).__name__, exhausted=died)
                    self._finish(worker, outcome, kill=True)
            else:
                if outcome is not None:
                    self._finish(worker, outcome, kill=False)

    def _again(self, worker: _Worker) -> None:
        """Give the job to another worker: it has not been answered, and it is not to blame. Twice at most."""
        index, _ = self.busy[worker]
        self._finish(worker, Outcome("error", message="its worker was lost, twice"), kill=True)
        self.repeated[index] += 1
        if self.repeated[index] <= 2:
            self.waiting.appendleft(index)

    def _kill_late(self) -> None:
        now = time.monotonic()
        for worker, (_, deadline) in list(self.busy.items()):
            if now >= deadline:
                message = f"no verdict within {self.pool.job_seconds:g} s"
                self._finish(worker, Outcome("timeout", message=message, exhausted=True), kill=True)

    def _finish(self, worker: _Worker, outcome: Outcome, *, kill: bool) -> None:
        index, _ = self.busy.pop(worker)
        self.selector.unregister(worker.channel)
        self.outcomes[index] = outcome
        if kill:
            self.pool._kill(worker)
        else:
            self.pool._give_back(worker)


class _Zygote:
    """The pool's end of the helper process that forks workers."""

    def __init__(self, settings: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        settings = settings | {"path": library_path(), "readable": readable_paths()}
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | ONE_THREAD
        self.process = subprocess.Popen(
            [sys.executable, "-c", BOOT, str(theirs.fileno()), json.dumps(settings)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd="/",
        )
        theirs.close()
        self.control = ours
        self._finalizer = weakref.finalize(self, _end_process, self.process, ours, os.getpid())
        reply = self._reply(START_SECONDS)
        if "ready" not in reply:
            self.close()
            reason = reply.get("failed", "it ended")
            raise VerifyError(f"the worker process could not load {settings['target']}: {reason}")

    def spawn(self) -> _Worker:
        ours, theirs = socket.socketpair()
        try:
            return _Worker(self, int(self._ask({"spawn": 1}, [theirs.fileno()])["pid"]), ours)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()

    def kill(self, pid: int) -> None:
        self._ask({"kill": pid})

    def _ask(self, request: dict[str, int], fds: Sequence[int] = ()) -> dict[str, Any]:
        self.control.settimeout(REPLY_SECONDS)
        socket.send_fds(self.control, [zygote.pack_line(request)], fds)
        if not (reply := self._reply(REPLY_SECONDS)):
            raise ConnectionError("the helper process ended")
        return reply

    def _reply(self, seconds: float) -> dict[str, Any]:
        """One JSON line; {} if the other end closed."""
        self.control.settimeout(seconds)
        line = b""
        while not line.endswith(b"\n"):
            block = self.control.recv(65536)
            if not block:
                return {}
            line += block
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        self._finalizer()


def _end_process(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    """Closing the socket ends the helper and its workers; a helper that does not listen is killed, and they with it."""
    control.close()
    if os.getpid() != owner:
        return
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def readable_paths() -> list[str]:
    """What a confined worker may read: the interpreter, the libraries on the path, and this package."""
    here = str(Path(__file__).resolve().parents[2])
    paths = [*confine.interpreter_paths(), sys.prefix, here, *(p for p in library_path() if p != "/")]
    return confine.minimal(paths)
