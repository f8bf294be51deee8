"""Programs against their tests: right ones pass, wrong ones fail, hostile ones fail and touch nothing."""

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.verify.sandbox import confine
from offleash.eval.verify.sandbox.limits import Limits
from offleash.eval.verify.sandbox.programs import MAX_PROGRAM, Case, ProgramVerifier, Suite
from offleash.eval.verify.sandbox.supervisor import same_output

needs_sandbox = pytest.mark.skipif(confine.unavailable() is not None, reason=f"no sandbox: {confine.unavailable()}")

CHECK = """
def check(candidate):
    assert candidate(2, 3) == 5
    assert candidate(-1, 1) == 0
    assert candidate([1], [2]) == [1, 2]
"""
SUM = Suite(tests=CHECK, entry="add", setup='def add(a, b):\n    """Add."""\n')
ECHO = Suite(cases=(Case("1 2\n", "3\n"), Case("10 -4\n", "6\n")))
RIGHT = "def add(a, b):\n    return a + b\n"
RIGHT_ECHO = "a, b = map(int, input().split())\nprint(a + b)\n"
LIMITS = Limits(cpu_seconds=4, memory_bytes=512 << 20, processes=12)


@pytest.fixture(scope="module")
def verifier() -> Iterator[ProgramVerifier]:
    made = ProgramVerifier(workers=2, limits=LIMITS, wall_seconds=15)
    yield made
    made.close()


@pytest.fixture(scope="module")
def impatient() -> Iterator[ProgramVerifier]:
    """For programs that never end."""
    made = ProgramVerifier(workers=2, limits=replace(LIMITS, cpu_seconds=1), wall_seconds=2)
    yield made
    made.close()


def verdict(verifier: ProgramVerifier, program: str, suite: Suite = SUM) -> tuple[bool, str]:
    outcome = verifier.judge([program], [suite])[0]
    assert outcome.status == "ok", outcome.message
    return outcome.value["passed"], outcome.value["reason"]


@needs_sandbox
def test_right_programs_pass_and_wrong_ones_fail(verifier: ProgramVerifier) -> None:
    programs = [
        RIGHT,
        "def add(a, b):\n    return a - b\n",
        "def other(): pass\n",
        "def add(a, b:\n",
        "",
        "x" * (MAX_PROGRAM + 1),
    ]
    passed = [outcome.value["passed"] for outcome in verifier.judge(programs, [SUM] * len(programs))]
    assert passed == [True, False, False, False, False, False]


@needs_sandbox
def test_programs_that_read_and_print(verifier: ProgramVerifier) -> None:
    programs = [
        RIGHT_ECHO,
        "print(3)\n",
        "print('3\\n3')\n",
        "import sys; sys.exit(1)\n",
        RIGHT_ECHO + "raise ValueError\n",
    ]
    passed = [outcome.value["passed"] for outcome in verifier.judge(programs, [ECHO] * len(programs))]
    assert passed == [True, False, False, False, False]
    assert verdict(verifier, "print(3)\n", ECHO)[1] == "case 2: wrong output"


@needs_sandbox
def test_plain_asserts_methods_and_helpers_of_the_prompt(verifier: ProgramVerifier) -> None:
    asserts = Suite(tests="assert sorted(f([3, 1])) == [1, 3]\nassert f([]) == []", entry="f")
    assert verdict(verifier, "def f(x):\n    return x\n", asserts)[0]
    assert not verdict(verifier, "def f(x):\n    return None\n", asserts)[0]
    method = Suite(tests="def check(c):\n    assert c(4) == 16", entry="Solution.square")
    assert verdict(verifier, "class Solution:\n    def square(self, x):\n        return x * x\n", method)[0]
    helper = Suite(
        tests="def check(c):\n    assert c(double(2)) == 2", entry="half", setup="def double(x):\n    return 2 * x\n"
    )
    assert verdict(verifier, "def half(x):\n    return x // 2\n", helper)[0]


@needs_sandbox
def test_values_keep_their_types(verifier: ProgramVerifier) -> None:
    tests = """
def check(c):
    for value in (1, -1, 2**200, 0.1, float("inf"), True, None, "é\\x00\\ud800", b"\\xff", (1, (2,)), [],
                  {1: "a", (1, 2): [3]},
                  {1, 2}, frozenset({3}), 1j):
        assert c(value) == value and type(c(value)) is type(value), value
    assert c(float("nan")) != c(float("nan"))
    items = [3, 1, 2]
    c(items, sort=True)
    assert items == [1, 2, 3]
    try:
        c(None, fail=True)
    except ValueError as error:
        assert "no" in str(error)
    else:
        raise AssertionError
"""
    program = """
def same(value, sort=False, fail=False):
    if fail:
        raise ValueError("no")
    if sort:
        value.sort()
    return value
"""
    assert verdict(verifier, program, Suite(tests=tests, entry="same")) == (True, "")


@needs_sandbox
def test_tests_that_cannot_be_run_are_our_error_not_the_programs(verifier: ProgramVerifier) -> None:
    functions = Suite(tests="def check(c):\n    assert c(lambda x: x) == 1", entry="f")
    broken = Suite(tests="def check(c:\n", entry="f")
    for suite in (functions, broken):
        assert verifier.judge(["def f(x): return 1"], [suite])[0].status == "error"


@needs_sandbox
def test_an_input_that_is_too_large_is_our_error_not_the_programs(verifier: ProgramVerifier) -> None:
    huge = "1 2\n" + " " * (17 << 20)
    cases = Suite(cases=(Case("1 2\n", "3\n"), Case(huge, "3\n")))
    calls = Suite(tests=f"def check(c):\n    assert c('x' * {17 << 20}, '') == 1", entry="add")
    for program, suite, said in ((RIGHT_ECHO, cases, "case 2"), (RIGHT, calls, "limit")):
        outcome = verifier.judge([program], [suite])[0]
        assert (outcome.status, said in outcome.message) == ("error", True), outcome
    assert verdict(verifier, RIGHT_ECHO, ECHO) == (True, "")


REFUSED = {
    "memfd_create": "os.memfd_create('x')",
    "raw memfd_create": "raw(319 if x86 else 279, b'x', 0)",
    "memfd_secret": "raw(447, 0)",
    "io_uring_setup": "raw(425, 8, ctypes.create_string_buffer(256))",
    "bpf": "raw(321 if x86 else 280, 0, None, 0)",
    "keyctl": "raw(250 if x86 else 219, 0, 0, 0)",
    "userfaultfd": "raw(323 if x86 else 282, 1)",
    "perf_event_open": "raw(298 if x86 else 241, None, 0, -1, -1, 0)",
    "shmget": "raw(29 if x86 else 194, 0, 4096, 0o1600)",
    "ptrace": "raw(101 if x86 else 117, 0, 0, 0, 0)",
    "unshare": "raw(272 if x86 else 97, 0x10000000)",
    "clone into a user namespace": "raw(56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0)",
    "x32": "raw(0x40000000 | 39) if x86 else raw(279, b'x', 0)",
}


@needs_sandbox
@pytest.mark.parametrize("name", REFUSED)
def test_a_system_call_that_escapes_limits_is_refused(verifier: ProgramVerifier, name: str) -> None:
    """The program returns 5 only if the call failed as if the kernel did not have it, or did not permit it."""
    program = f"""
import ctypes, errno, os, platform
x86 = platform.machine() == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
def raw(*arguments):
    found = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if found == -1: raise OSError(ctypes.get_errno(), "")
    if found == 0: os._exit(0)
try:
    {REFUSED[name]}
    refused = False
except OSError as error:
    refused = error.errno in (errno.ENOSYS, errno.EPERM)
def add(a, b): return a + b if refused else None
"""
    assert verdict(verifier, program) == (True, "")


@needs_sandbox
def test_threads_and_children_still_work_under_the_filter(verifier: ProgramVerifier) -> None:
    program = """
import subprocess, sys, threading
found = []
worker = threading.Thread(target=found.append, args=(1,)); worker.start(); worker.join()
found.append(int(subprocess.run([sys.executable, "-c", "print(2)"], capture_output=True, text=True).stdout))
def add(a, b): return a + b if found == [1, 2] else None
"""
    assert verdict(verifier, program) == (True, "")


EQUAL_TO_ALL = """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
def add(a, b): return Any()
"""
EQUAL_INT = """
class Int(int):
    def __eq__(self, other): return True
    __hash__ = None
def add(a, b): return Int(99)
"""
FAKES = {
    "exit while loading": "import sys; sys.exit(0)",
    "hard exit while loading": "import os; os._exit(0)",
    "exit in the call": "def add(a, b):\n    raise SystemExit(0)",
    "hard exit in the call": "import os\ndef add(a, b):\n    os._exit(0)",
    "print a pass": "print('passed: True'); print('{\"passed\": true}')\ndef add(a, b): print('{\"passed\": true}')",
    "write a pass to every descriptor": (
        "import os\n"
        "for fd in range(0, 60):\n"
        '    try: os.write(fd, b\'{"passed": true, "reason": ""}\\n\' * 3)\n'
        "    except OSError: pass\n"
        "def add(a, b): return None"
    ),
    "forge replies": (
        "import os, json, struct\n"
        "data = json.dumps({'value': {'int': '0x5'}, 'arguments': {'list': []}}).encode()\n"
        "for fd in range(3, 60):\n"
        "    try: os.write(fd, (struct.pack('!I', len(data)) + data) * 9)\n"
        "    except OSError: pass\n"
    ),
    "an object equal to anything": EQUAL_TO_ALL,
    "an integer equal to anything": EQUAL_INT,
    "patch the comparison": (
        "import builtins, operator\n"
        "builtins.AssertionError = type('Quiet', (Exception,), {})\n"
        "builtins.check = lambda c: None\n"
        "import __main__; __main__.check = lambda c: None\n"
        "def add(a, b): return 0"
    ),
    "look for the tests": (
        "import gc, sys\n"
        "def add(a, b):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for value in frame.f_locals.values():\n"
        "            if isinstance(value, str) and 'candidate(2, 3) == 5' in value: return 5\n"
        "        frame = frame.f_back\n"
        "    for value in gc.get_objects():\n"
        "        if isinstance(value, (str, dict)) and 'candidate(2, 3) == 5' in str(value)[:9999]: return 5\n"
        "    return None"
    ),
    "trace the judge": (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "attached = [libc.ptrace(16, 1, 0, 0), libc.ptrace(0x4206, 1, 0, 0)]\n"
        "os.kill(1, 9); os.kill(1, 15)\n"
        "def add(a, b): return 5 if 0 in attached else None"
    ),
    "limit the judge": "import resource\nresource.prlimit(1, resource.RLIMIT_CPU, (0, 0))\ndef add(a, b): return None",
    "kill everyone": "import os\nos.kill(-1, 9)",
}


@needs_sandbox
@pytest.mark.parametrize("name", FAKES)
def test_a_faked_result_is_wrong(verifier: ProgramVerifier, name: str) -> None:
    assert not verdict(verifier, FAKES[name])[0]


@needs_sandbox
@pytest.mark.parametrize(
    "program",
    [
        "import os; os._exit(0)",
        "print('3'); import os; os.kill(os.getppid(), 9)",
        "print(open('input').read())",
        "import sys; sys.stdout.write('3\\n'); open('program.py', 'w').write('print(6)')",
    ],
)
def test_a_faked_output_is_wrong(verifier: ProgramVerifier, program: str) -> None:
    assert not verdict(verifier, program, ECHO)[0]


def mischief(code: str) -> list[tuple[str, Suite]]:
    """The same mischief in a function, while loading, and in a program that prints."""
    indented = "\n".join(f"    {line}" for line in code.splitlines())
    return [(f"def add(a, b):\n{indented}\n    return None", SUM), (f"{code}\n", ECHO)]


BOMBS = {
    "fork": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork and flee": (
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0: time.sleep(600)\n"
        "        os._exit(0)"
    ),
    "threads": (
        "import threading, time\n"
        "while True:\n"
        "    try: threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    except RuntimeError: break"
    ),
    "memory": "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "memory in many processes": (
        "import os, time\n"
        "for _ in range(10):\n"
        "    try:\n"
        "        if os.fork() == 0:\n"
        "            x = bytearray(b'x') * (300 << 20); time.sleep(600)\n"
        "    except OSError: pass\n"
        "time.sleep(600)"
    ),
    "loop": "while True: pass",
    "sleep": "import time\ntime.sleep(600)",
    "big number": "9 ** 9 ** 9",
    "gigabytes": "while True: print('x' * 1000000)",
    "files": "i = 0\nwhile True:\n    i += 1\n    open(f'f{i}', 'wb').write(bytes(1 << 20))",
    "signals": (
        "import signal\n"
        "for n in range(1, 30):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except Exception: pass\n"
        "while True: pass"
    ),
    "recursion": "def f(): f()\nimport sys\nsys.setrecursionlimit(10**9)\nf()",
}


@needs_sandbox
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_wrong_and_leaves_nothing_behind(
    verifier: ProgramVerifier, impatient: ProgramVerifier, name: str
) -> None:
    before = {process.pid for process in psutil.process_iter()}
    programs, suites = zip(*mischief(BOMBS[name]), strict=True)
    started = time.monotonic()
    outcomes = impatient.judge(programs, suites)
    assert time.monotonic() - started < 60
    assert [(outcome.status, outcome.value["passed"]) for outcome in outcomes] == [("ok", False)] * 2
    deadline = time.monotonic() + 20
    while (left := strangers(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert verdict(verifier, RIGHT)[0]


def strangers(before: set[int]) -> list[psutil.Process]:
    """Processes that run a judged program and were not there before."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        ours = "program.py" in line or any("untrusted side of a judged program" in part for part in line)
        if process.pid not in before and ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.mark.long
@needs_sandbox
def test_vandals_harm_nothing(verifier: ProgramVerifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "precious.txt"
    victim.write_text("precious")
    for folder in (tmp_path, tmp_path.parent):
        folder.chmod(0o777)
    victim.chmod(0o666)
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    code = f"""
import os, shutil, subprocess
for path in ({str(victim)!r}, "/etc/passwd", os.__file__):
    try: os.remove(path)
    except OSError: pass
    try: open(path, "w").write("vandal")
    except OSError: pass
shutil.rmtree({str(tmp_path)!r}, ignore_errors=True)
shutil.rmtree("/usr/share", ignore_errors=True)
shutil.rmtree("/", ignore_errors=True)
try: subprocess.run(["rm", "-rf", "/"], capture_output=True)
except OSError: pass
"""
    looks = f"""
import os, glob
found = [name for name in os.environ if "SECRET" in name] + glob.glob("/home/*/.ssh/*")
found += glob.glob("/proc/*/environ") + glob.glob({str(tmp_path)!r} + "/*")
"""
    programs, suites = zip(*mischief(code + looks), strict=True)
    assert not any(outcome.value["passed"] for outcome in verifier.judge(programs, suites))
    assert victim.read_text() == "precious"
    assert Path("/etc/passwd").stat().st_size > 0
    assert Path(os.__file__).exists()
    tells = looks + "\ndef add(a, b):\n    return (a + b) if not found else found\n"
    assert verdict(verifier, tells) == (True, "")


@needs_sandbox
def test_there_is_no_network(verifier: ProgramVerifier) -> None:
    program = """
import socket
def add(a, b):
    for family, kind, address in ((2, 1, ("127.0.0.1", 22)), (2, 2, ("8.8.8.8", 53)), (10, 1, ("::1", 22))):
        try:
            socket.socket(family, kind).connect(address)
            return "connected"
        except OSError as error:
            if error.errno == 111: return "reached a machine that refused"
    return a + b
"""
    assert verdict(verifier, program) == (True, "")


@needs_sandbox
def test_a_program_may_use_its_scratch_folder_and_finds_it_empty(verifier: ProgramVerifier) -> None:
    program = "import os\nassert os.listdir() == []\ndef add(a, b):\n    open('x', 'w').write('1')\n    return a + b\n"
    assert verdict(verifier, program)[0]
    assert verdict(verifier, program)[0]


def test_without_a_sandbox_programs_are_refused_unless_the_user_insists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "unavailable", lambda: "namespaces are switched off")
    with pytest.raises(ConfigError, match=r"namespaces are switched off.*allow_unconfined"):
        ProgramVerifier()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match=r"refused for root.*namespaces are switched off"):
        ProgramVerifier(allow_unconfined=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.warns(RuntimeWarning, match="WITHOUT A SANDBOX"):
        verifier = ProgramVerifier(allow_unconfined=True, limits=LIMITS, wall_seconds=3)
    assert not verifier.confined
    flee = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(77)\n    os._exit(0)\n"
        + RIGHT
    )
    try:
        outcomes = verifier.judge([RIGHT, "while True: pass", RIGHT_ECHO, flee], [SUM, SUM, ECHO, SUM])
        assert [(outcome.status, outcome.value["passed"]) for outcome in outcomes] == [
            ("ok", True),
            ("ok", False),
            ("ok", True),
            ("ok", True),
        ]
    finally:
        verifier.close()
    # Another test's program, in another process of pytest, ends by itself; one that fled would sleep on.
    assert psutil.wait_procs(strangers(set()), timeout=30)[1] == []


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("3\n", "3", True),
        ("1 2\n3\n", "1 2 \n3\n\n", True),
        ("0.5", "0.50", True),
        ("1e3 2", "1000 2.0", True),
        ("3", "4", False),
        ("1 2", "1  2", True),
        ("a b", "a  b", False),
        ("1\n2", "1 2", False),
        ("Yes", "YES", False),
        ("", "\n", True),
        ("nan", "nan", True),
        ("0.3333333", "0.33333333", False),
    ],
)
def test_outputs_are_compared_line_by_line_and_numbers_by_value(expected: str, printed: str, same: bool) -> None:
    assert same_output(expected, printed) is same


def test_a_suite_has_one_kind_of_test() -> None:
    for fields in ({}, {"tests": "x"}, {"tests": "x", "entry": "f", "cases": (Case("", ""),)}):
        with pytest.raises(ConfigError):
            Suite(**fields)


@needs_sandbox
def test_libraries_are_there_only_if_asked_for() -> None:
    program = "import numpy\ndef add(a, b):\n    return a + b\n"
    for wanted in (False, True):
        verifier = ProgramVerifier(site_packages=wanted)
        try:
            assert verdict(verifier, program)[0] is wanted
        finally:
            verifier.close()


def test_the_test_process_itself_is_well() -> None:
    """After all of the above: this machine still forks, writes and lists its processes."""
    assert subprocess.run(["true"], check=True).returncode == 0
