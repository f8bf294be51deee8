"""The trusted side of a judged program: process 1 of its sandbox, which holds the tests and says whether they passed.

`judge` is a worker's job (see `programs`). It builds a sandbox around `Trial.run`, which starts the program as a
child, either as a function server (`program_server`) that is called by the tests, or once per input with standard
input and output. The tests never enter the program's process. Whatever is left running is killed when the trial ends.
"""

import builtins
import contextlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from offleash.eval.verify.sandbox import confine, program_server
from offleash.eval.verify.sandbox.limits import Limits, die_with_parent, end_children, kill_and_reap, spawn_unconfined
from offleash.eval.verify.sandbox.memory_group import enter, memory_group
from offleash.eval.verify.sandbox.program_server import decode, encode, pack, read_frame
from offleash.eval.verify.sandbox.syscalls import refuse_syscalls

SERVER = Path(program_server.__file__).read_text(encoding="utf-8")
PYTHON = os.path.realpath(sys.executable)
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
MAX_REPORT = 1 << 16
WATCH_SECONDS = 0.1


class ProgramError(Exception):
    """The program died, said something unreadable, or ran out of time: it fails."""


class JudgeError(Exception):
    """The tests ask for something this judge cannot do: a failure of the verifier, not of the program."""


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """A worker's job: run one program against its tests. {"passed", "reason"}, or raises JudgeError."""
    reader, writer = os.pipe()
    trial = Trial(job, writer)
    with memory_group(trial.memory_together) as group:
        pid = start(trial, job["confined"], writer, group)
        os.close(writer)
        report = watch(pid, reader, trial)
        os.close(reader)
        kill_and_reap(pid)
    if "error" in report:
        raise JudgeError(report["error"])
    return report


def start(trial: "Trial", confined: bool, writer: int, group: Path | None) -> int:
    if confined:
        return confine.spawn(
            trial.run,
            readable=[*confine.interpreter_paths(), *trial.path],
            limits=trial.outer_limits,
            keep=[writer],
            environment=ENVIRONMENT,
            group=group,
        )

    def run() -> None:
        if group is not None:
            enter(group)
        with contextlib.suppress(OSError):  # without a sandbox the filter is only a help
            refuse_syscalls()
        trial.run()

    return spawn_unconfined(run, limits=trial.outer_limits, environment=ENVIRONMENT)


def watch(pid: int, reader: int, trial: "Trial") -> dict[str, Any]:
    """Collect the report; end the trial at its deadline or when its processes together hold too much memory."""
    deadline = time.monotonic() + trial.total_seconds
    received = b""
    reason = "the program took down its judge"
    while True:
        ready = select.select([reader], [], [], WATCH_SECONDS)[0]
        if ready:
            block = os.read(reader, 4096)
            received += block
            if not block or len(received) > MAX_REPORT:
                break
        elif time.monotonic() > deadline:
            reason = "time limit"
            break
        elif resident(pid) > trial.memory_together:
            reason = "memory limit of all processes together"
            break
    return read_report(received, reason)


def read_report(received: bytes, reason: str) -> dict[str, Any]:
    """The last line is the verdict. Without one the program failed if it had started; otherwise the verifier did."""
    lines = received.decode(errors="replace").splitlines()
    if not lines:
        return {"error": "the judge did not start"}
    report: dict[str, Any] = json.loads(lines[-1])
    return {"passed": False, "reason": reason} if "started" in report else report


def resident(pid: int) -> int:
    """Bytes of memory held by a process and its descendants (0 where the kernel does not list children)."""
    total, todo = 0, [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * resource.getpagesize()
            todo += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    return total


class Trial:
    """One program and its tests. `run` is process 1; everything else is prepared outside."""

    def __init__(self, job: dict[str, Any], writer: int) -> None:
        self.job, self.writer = job, writer
        self.limits = Limits(**job["limits"])
        self.outer_limits = Limits(**(job["limits"] | {"cpu_seconds": 3600}))
        self.wall_seconds: float = job["wall_seconds"]
        self.total_seconds = min(self.wall_seconds * max(1, len(job["cases"])), job["total_seconds"]) + 2.0
        self.path: list[str] = job["path"]

    @property
    def memory_together(self) -> int:
        """What all processes of the trial, this judge included, may hold."""
        return 2 * self.limits.memory_bytes

    def run(self) -> None:
        try:
            self.check_sizes()
            self.say({"started": True})
            report = self.run_cases() if self.job["cases"] else self.run_tests()
        except JudgeError as error:
            report = {"error": str(error)}
        end_everything()
        self.say(report)

    def check_sizes(self) -> None:
        """An input that does not fit into the scratch folder is no fault of the program."""
        most = min(self.limits.file_bytes, self.limits.scratch_bytes // 2)
        for number, case in enumerate(self.job["cases"], 1):
            if (size := len(case["input"].encode())) > most:
                raise JudgeError(f"the input of case {number} has {size:,} bytes, the limit is {most:,}")

    def say(self, report: dict[str, Any]) -> None:
        os.write(self.writer, json.dumps(report).encode()[:MAX_REPORT] + b"\n")

    def popen(
        self, arguments: list[str], *, stdin: Any = DEVNULL, stdout: int = DEVNULL, pass_fds: Sequence[int] = ()
    ) -> "subprocess.Popen[bytes]":
        """Python in a session of its own, with the limits of a program."""
        return subprocess.Popen(
            [PYTHON, "-I", "-S", *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=DEVNULL,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=self.limit_child,
        )

    def limit_child(self) -> None:
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_CPU, (self.limits.cpu_seconds, self.limits.cpu_seconds))

    # The program as a function

    def run_tests(self) -> dict[str, Any]:
        requests_r, requests_w = os.pipe()
        replies_r, replies_w = os.pipe()
        server = self.popen(["-c", SERVER, str(requests_r), str(replies_w)], pass_fds=[requests_r, replies_w])
        os.close(requests_r)
        os.close(replies_w)
        caller = Caller(requests_w, replies_r, time.monotonic() + self.wall_seconds)
        try:
            caller.start(self.job["program"], self.job["entry"], self.path)
            run_test_code(self.job["setup"], self.job["tests"], self.job["entry"], caller)
        except JudgeError:
            raise
        except BaseException as error:  # any way in which the tests do not finish, AssertionError first
            return {"passed": False, "reason": f"{type(error).__name__}: {error}"[:500]}
        finally:
            server.kill()
        return {"passed": True, "reason": ""}

    # The program as a process

    def run_cases(self) -> dict[str, Any]:
        for number, case in enumerate(self.job["cases"], 1):
            fault = self.run_case(case["input"], case["output"])
            end_everything()
            if fault:
                return {"passed": False, "reason": f"case {number}: {fault}"}
        return {"passed": True, "reason": ""}

    def run_case(self, given: str, expected: str) -> str:
        """ "" if the program prints what is expected, else what went wrong. Every case starts from an empty folder."""
        empty_folder()
        Path("program.py").write_text(self.job["program"], encoding="utf-8", errors="replace")
        Path("input").write_text(given, encoding="utf-8")
        with Path("input").open("rb") as stdin:
            child = self.popen([*self.boot(), "program.py"], stdin=stdin, stdout=subprocess.PIPE)
        try:
            printed = read_output(child, 2 * len(expected) + (1 << 16), time.monotonic() + self.wall_seconds)
        except ProgramError as error:
            return str(error)
        finally:
            child.kill()
        code = child.wait()
        if code:
            return f"exit code {code}"
        return "" if same_output(expected, printed.decode(errors="replace")) else "wrong output"

    def boot(self) -> list[str]:
        """With libraries on the path the program is started by a line that adds them."""
        line = f"import sys, runpy; sys.path.extend({self.path!r}); runpy.run_path(sys.argv[1], run_name='__main__')"
        return ["-c", line] if self.path else []


class Caller:
    """The tests' handle on the program's function: call it like the function itself."""

    def __init__(self, requests: int, replies: int, deadline: float) -> None:
        self.requests, self.replies, self.deadline = requests, replies, deadline
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.set_blocking(requests, False)

    def start(self, program: str, entry: str, path: list[str]) -> None:
        self.write({"program": program, "entry": entry, "path": path})
        reply = self.read()
        if "failed" in reply:
            raise ProgramError(f"the program does not load: {': '.join(map(str, reply['failed']))}")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        sent = {"arguments": encode(list(arguments)), "keywords": encode(keywords)}
        if '"opaque"' in json.dumps(sent):
            raise JudgeError("the tests pass something that is not plain data to the program")
        self.write(sent)
        reply = self.read()
        if "raised" in reply:
            raise exception_named(*reply["raised"])
        mirror(arguments, decode(reply["arguments"]))
        return decode(reply["value"])

    def write(self, message: Any) -> None:
        """Without blocking past the deadline: a program may stop reading."""
        try:
            data = pack(message)
        except ValueError as error:
            raise JudgeError(f"the tests pass too much to the program: {error}") from error
        while data:
            wait(self.deadline, [], [self.requests])
            try:
                data = data[os.write(self.requests, data[: 1 << 16]) :]
            except BrokenPipeError:
                raise ProgramError("the program ended before its tests did") from None

    def read(self) -> dict[str, Any]:
        try:
            reply = json.loads(read_frame(self.read_some))
        except EOFError:
            raise ProgramError("the program ended before its tests did") from None
        except (ValueError, RecursionError):
            raise ProgramError("the program's reply is unreadable or too long") from None
        if not isinstance(reply, dict) or not {"ready", "failed", "value", "raised"} & set(reply):
            raise ProgramError("the program's reply is unreadable")
        return reply

    def read_some(self, count: int) -> bytes:
        wait(self.deadline, [self.replies], [])
        return os.read(self.replies, count)


def wait(deadline: float, readers: list[int], writers: list[int]) -> None:
    left = deadline - time.monotonic()
    if left <= 0 or not any(select.select(readers, writers, [], left)):
        raise ProgramError("time limit")


def run_test_code(setup: str, tests: str, entry: str, caller: Caller) -> None:
    """Execute the tests with the caller in the function's place, and `check(candidate)` if they define it."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    with contextlib.suppress(SyntaxError):  # a prompt that is not a complete program defines nothing the tests can use
        exec(compile(setup, "<setup>", "exec"), namespace)
    namespace[entry.split(".")[0]] = caller
    try:
        code = compile(tests, "<tests>", "exec")
    except SyntaxError as error:
        raise JudgeError(f"the tests are not valid Python: {error}") from error
    exec(code, namespace)
    if callable(check := namespace.get("check")):
        check(caller)


def exception_named(name: str, message: str) -> BaseException:
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # UnicodeDecodeError and its like want more arguments
            return kind(str(message))
    return ProgramError(f"{name}: {message}")


def mirror(arguments: tuple[Any, ...], after: Any) -> None:
    """Programs may change lists and dictionaries they were given; let the tests see it."""
    if not isinstance(after, list) or len(after) != len(arguments):
        raise ProgramError("the program's reply is unreadable")
    for ours, theirs in zip(arguments, after, strict=True):
        if type(ours) is type(theirs) and ours != theirs:
            if isinstance(ours, list):
                ours[:] = theirs
            elif isinstance(ours, (dict, set)):
                ours.clear()
                ours.update(theirs)


def read_output(child: "subprocess.Popen[bytes]", most: int, deadline: float) -> bytes:
    assert child.stdout is not None
    data = b""
    while True:
        wait(deadline, [child.stdout.fileno()], [])
        block = os.read(child.stdout.fileno(), 1 << 16)
        if not block:
            break
        data += block
        if len(data) > most:
            raise ProgramError("prints far more than expected")
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise ProgramError("time limit") from None
    return data


def same_output(expected: str, printed: str) -> bool:
    """Line by line, ignoring spaces at either end of a line and trailing empty lines; numbers by value."""
    wanted, got = _lines(expected), _lines(printed)
    return len(wanted) == len(got) and all(w == g or _same_numbers(w, g) for w, g in zip(wanted, got, strict=True))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.rstrip().split("\n")]


def _same_numbers(wanted: str, got: str) -> bool:
    try:
        return [Decimal(word) for word in wanted.split()] == [Decimal(word) for word in got.split()]
    except InvalidOperation:
        return False


def empty_folder() -> None:
    for entry in os.scandir("."):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink()


def end_everything() -> None:
    """Kill and reap every other process of the trial."""
    if os.getpid() == 1:  # alone in our own namespace: -1 reaches every process in it and none outside
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        return
    end_children()
