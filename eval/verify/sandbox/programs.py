"""Programs judged by their tests, in a sandbox: model output is untrusted code.

A `Suite` is what a program must do: tests that call its function (HumanEval, MBPP, LeetCode style), or inputs with the
output expected for each. A program that loops, forks, eats memory, writes where it should not, exits early or lies
about equality is wrong, and nothing else happens. Where the machine has no sandbox (see `confine`), judging is an error
unless `allow_unconfined=True`: then programs have only limits on time, memory and file size, and can read, write and
reach the network. Root may not ask for that: its programs could do anything to the machine, and limits on processes do
not bind it.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.verify.sandbox import confine
from offleash.eval.verify.sandbox.limits import Limits
from offleash.eval.verify.sandbox.workers import Outcome, WorkerPool

MAX_PROGRAM = 200_000
TOTAL_SECONDS = 120.0  # for all cases of a program


@dataclass(frozen=True, slots=True)
class Case:
    """What is given on standard input and what must come out."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Suite:
    """Either `cases`, or `tests` for the function `entry` (`name`, or `Class.method`).

    `tests` is code: asserts that use the function by its name, or a function `check(candidate)`. `setup` is code it
    may rely on, such as the prompt's own helper functions. Tests run apart from the program and must pass it plain
    data only.
    """

    tests: str = ""
    entry: str = ""
    setup: str = ""
    cases: tuple[Case, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.cases) == bool(self.tests):
            raise ConfigError("a suite has either cases or tests")
        if self.tests and not self.entry:
            raise ConfigError("a suite of tests names the function under test: entry")


class ProgramVerifier:
    """`judge(programs, suites)`: per program an outcome whose value is {"passed": bool, "reason": str}.

    `cpu_seconds` is the limit that counts on a busy machine; `wall_seconds` (per case, or for all tests) ends what
    sleeps. `site_packages` lets programs import what is installed beside Offleash, such as numpy.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        limits: Limits | None = None,
        wall_seconds: float = 20.0,
        site_packages: bool = False,
        allow_unconfined: bool = False,
    ) -> None:
        self.limits = limits or Limits(cpu_seconds=8)
        self.wall_seconds = wall_seconds
        self.path = [p for p in sys.path if p and Path(p).name == "site-packages"] if site_packages else []
        self.confined = self._confinement(allow_unconfined)
        self.pool = WorkerPool(
            "offleash.eval.verify.sandbox.supervisor:judge",
            workers=workers,
            job_seconds=TOTAL_SECONDS + 15.0,
            memory_bytes=8 << 30,
            confined=False,  # workers build a sandbox per program instead
            may_fork=True,
        )

    def judge(self, programs: Sequence[str], suites: Sequence[Suite]) -> list[Outcome]:
        """Programs over the size limit are wrong without being run."""
        pairs = list(zip(programs, suites, strict=True))
        fit = [index for index, (program, _) in enumerate(pairs) if len(program) <= MAX_PROGRAM]
        ran = dict(zip(fit, self.pool.map([self._job(*pairs[index]) for index in fit]), strict=True))
        too_long = Outcome("ok", {"passed": False, "reason": f"longer than {MAX_PROGRAM} characters"})
        return [ran.get(index, too_long) for index in range(len(pairs))]

    def close(self) -> None:
        self.pool.close()

    def _job(self, program: str, suite: Suite) -> dict[str, Any]:
        return {
            "program": program,
            **asdict(suite),
            "limits": asdict(self.limits),
            "wall_seconds": self.wall_seconds,
            "total_seconds": TOTAL_SECONDS,
            "path": self.path,
            "confined": self.confined,
        }

    @staticmethod
    def _confinement(allow_unconfined: bool) -> bool:
        reason = confine.unavailable()
        if reason is None:
            return True
        if not allow_unconfined:
            raise ConfigError(
                f"programs written by a model cannot be run safely here: the sandbox is unavailable ({reason}). It "
                "needs Linux 5.14 or newer with user namespaces; in a container, allow them (Docker: --security-opt "
                "seccomp=unconfined). On a disposable machine, as an ordinary user, pass allow_unconfined=True."
            )
        if os.geteuid() == 0:
            raise ConfigError(
                f"allow_unconfined is refused for root: the sandbox is unavailable ({reason}), and a program written "
                "by a model would own the machine. Run as an ordinary user, or make the sandbox available"
            )
        warnings.warn(
            f"RUNNING UNTRUSTED PROGRAMS WITHOUT A SANDBOX ({reason}): they can read and write your files and use the "
            "network.",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
