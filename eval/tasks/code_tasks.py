"""Programs judged by running them: HumanEval's tests, LiveCodeBench's and LiveBench's cases. The sandbox is `verify`'s.

The program is the last fenced block of a reply, or the whole reply if it is all code. Cases of the LiveCodeBench
kind are JSON, the private ones compressed; they are decoded when a program is judged, not before: a release has
gigabytes of them. As there, programs find the usual modules imported and may use what is installed beside Offleash.
"""

import base64
import functools
import hashlib
import io
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offleash.eval.errors import ConfigError, first_line
from offleash.eval.inflate import inflate
from offleash.eval.problem import Problem
from offleash.eval.tasks.answer_task import Scored, SlowTask
from offleash.eval.verify.extract import Found, visible
from offleash.eval.verify.sandbox.limits import Limits
from offleash.eval.verify.sandbox.programs import Case, ProgramVerifier, Suite
from offleash.eval.verify.sandbox.workers import own_cores

VERDICTS = "1"  # bump with every change that could change a verdict
CPU_SECONDS, MEMORY_BYTES = 15, 2 << 30  # per case, or for all calls of a function
FENCE = "```"
CODE = re.compile(r"^(?:import|from|def|class|print\()", re.MULTILINE)
MODULES = "string re datetime collections heapq bisect copy math random statistics itertools functools operator typing"
PRELUDE = (
    "".join(f"from {module} import *\n" for module in [*MODULES.split(), "builtins"])  # operator and math have a pow
    + f"import sys, io, json, {', '.join(MODULES.split())}\nsys.setrecursionlimit(50000)\n"
)
CASES_BYTES = 500_000_000  # unpacked, of one problem
AT_ONCE = 16  # programs judged together: their decoded cases are all in memory
CHECK = """import json
CASES = json.loads({cases!r})
def plain(value):
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
def check(candidate):
    for given, expected in CASES:
        assert plain(candidate(*given)) == expected
"""


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests of one problem: test `code`, or cases (`public` and `private`, as LiveCodeBench stores them).

    `entry` is the function to call, "" for programs that read standard input. `prefix` is what the prompt already
    contains: it is prepended to a program that does not repeat it.
    """

    entry: str = ""
    code: str = ""
    public: str = ""
    private: str = ""
    prefix: str = ""

    def program(self, written: str) -> str:
        if self.code:  # a function to complete: whole, or only its body
            whole = re.search(rf"^(?:async )?def {re.escape(self.entry)}\b", written, re.MULTILINE)
            return f"{self.prefix}\n\n{written}" if whole else self.prefix + written
        full = written if written.startswith(self.prefix) else f"{self.prefix}\n{written}"
        return full if "from __future__" in full else PRELUDE + full

    def suite(self, program: str) -> Suite:
        if self.code:
            return Suite(tests=self.code, entry=self.entry, setup=self.prefix)
        cases = [*decode_cases(self.public), *decode_cases(self.private)]
        if not cases:
            raise ValueError("there are no cases")
        if not self.entry:
            return Suite(cases=tuple(Case(str(case["input"]), str(case["output"])) for case in cases))
        pairs = [
            [[json.loads(line) for line in case["input"].split("\n")], json.loads(case["output"])] for case in cases
        ]
        entry = f"Solution.{self.entry}" if "class Solution" in program else self.entry
        return Suite(tests=CHECK.format(cases=json.dumps(pairs)), entry=entry)


class CodeAnswers(SlowTask):
    """Problems with their tests by problem id. No process starts before the first program is judged."""

    def __init__(
        self,
        name: str,
        problems: Sequence[Problem],
        tests: Mapping[str, Tests],
        *,
        thinking: bool = False,
        workers: int | None = None,
        allow_unconfined: bool = False,
    ) -> None:
        super().__init__(name, problems, thinking=thinking)
        self.tests, self.allow_unconfined = dict(tests), allow_unconfined
        self._workers = workers
        self.version = f"code-{VERDICTS}-{CPU_SECONDS}s-{'think' if thinking else 'plain'}"

    @functools.cached_property
    def verifier(self) -> ProgramVerifier:
        return ProgramVerifier(
            workers=self._workers,
            limits=Limits(cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES),
            wall_seconds=2.0 * CPU_SECONDS,
            site_packages=True,
            allow_unconfined=self.allow_unconfined,
        )

    def find(self, problem: Problem, completion: str) -> Found:
        if problem.id not in self.tests:
            raise ConfigError(f"problem {problem.id!r} is not in task {self.name!r}")
        return program_in(completion, self.thinking)

    def score(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Scored]:
        done: dict[tuple[str, str], Scored] = {}
        together = AT_ONCE * (self._workers or own_cores())
        for start in range(0, len(pairs), together):
            some = pairs[start : start + together]
            tests = [self.tests[problem_id] for problem_id, _ in some]
            programs = [one.program(written) for one, (_, written) in zip(tests, some, strict=True)]
            suites = [one.suite(program) for one, program in zip(tests, programs, strict=True)]
            for pair, outcome in zip(some, self.verifier.judge(programs, suites), strict=True):
                done[pair] = Scored.of(outcome, outcome.status == "ok" and bool(outcome.value["passed"]))
        return done

    def answer_class(self, problem: Problem, answer: str, correct: bool) -> str:
        """Of a program that failed, a hash of its text, ignoring trailing spaces."""
        lines = "\n".join(line.rstrip() for line in answer.strip().split("\n"))
        return "correct" if correct else f"#{hashlib.sha256(lines.encode(errors='replace')).hexdigest()[:16]}"

    def quick_faults(self) -> list[tuple[str, str]]:
        """Problems whose tests cannot be read, except for private cases. Nothing is run."""
        return self.gold_faults(deep=False)

    def gold_completion(self, problem: Problem) -> str | None:
        return f"```python\n{problem.gold}\n```" if problem.gold else None

    def close(self) -> None:
        if "verifier" in self.__dict__:
            self.verifier.close()

    def gold_faults(self, deep: bool = True) -> list[tuple[str, str]]:
        faults = []
        for problem in self.problems:
            tests = self.tests[problem.id]
            try:
                shallow = tests if deep or not decode_cases(tests.public) else replace(tests, private="")
                shallow.suite("")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                faults.append((problem.id, f"its tests cannot be read: {type(error).__name__}: {error}"[:200]))
        return faults


def program_in(completion: str, opened: bool = False) -> Found:
    """The program in a reply."""
    text, _ = visible(completion, opened)
    if text is None:
        return Found(None, "")
    if (block := last_fenced(text)) is not None:
        return Found(block, "fence")
    return Found(text, "bare") if FENCE not in text and CODE.search(text) else Found(None, "")


def last_fenced(text: str) -> str | None:
    """The last fenced block: the lines between one that starts with a fence and the next that is nothing else."""
    lines = text.split("\n")
    block, opened = None, None
    for number, line in enumerate(lines):
        bare = line.strip(" \t")
        if opened is None:
            opened = number if bare.startswith(FENCE) and "`" not in bare[len(FENCE) :] else None
        elif bare == FENCE:
            block, opened = (opened + 1, number), None
    return None if block is None else "".join(f"{line}\n" for line in lines[slice(*block)])


class _TextOnly(pickle.Unpickler):
    """Private cases are a pickled string; nothing else may be built from them."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"cases name {module_name}.{global_name}")


@functools.lru_cache(maxsize=4)
def decode_cases(stored: str) -> tuple[dict[str, Any], ...]:
    """Cases as JSON, or as base64 of zlib of a pickled JSON text. ValueError if they are neither."""
    if not stored.strip():
        return ()
    try:
        cases = json.loads(stored)
    except (ValueError, RecursionError):
        try:
            packed = inflate(base64.b64decode(stored.encode()), CASES_BYTES)
            cases = json.loads(_TextOnly(io.BytesIO(packed)).load())
        except Exception as error:  # a mangled pickle raises nearly anything
            raise ValueError(f"cases cannot be decoded ({first_line(error)})") from error
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise ValueError("cases are not a list of objects")
    return tuple(cases)
