"""`pool.json`: what a folder of samples is, which of its files count, and how far it was asked to go.

A pool grows by a new `pool.json`, which replaces the former one atomically. `problems.parquet` is written before it and
only ever gets longer, so a reader takes as many problems from it as its `pool.json` counts. Judging a pool again writes
all of its samples anew as another generation (`samples.2-*.parquet`, `problems.2.parquet`), and the new `pool.json`
makes that the valid one: there is no moment with verdicts of two verifiers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from offleash.eval.errors import PoolError
from offleash.eval.files import TEMPORARY, check_is_file
from offleash.eval.fingerprint import canonical_json, problems_fingerprint
from offleash.eval.lock import LOCK, awaited
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.pool.store import Answers, read_problems, write_problems
from offleash.eval.problem import Problem
from offleash.eval.sampling import is_int

NAME = "pool.json"
FORMAT = 4
"""Of the folder's layout. Older ones are read and continued, a newer one is refused."""
GROWING = ".growing"
"""The lock that is held while `pool.json` is replaced: for a moment, unlike that of a process that samples."""

Asked = tuple[list[Problem], list[tuple[str, ...] | None], list[int]]
"""Problems, their correct answers where listed, and the samples asked for of each."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `pool.json`."""

    spec: PoolSpec
    """Of the whole pool: every problem, and the largest number of samples asked for of any."""
    stamps: tuple[str, ...]
    """Fingerprints that its parts may carry; new ones get the first."""
    created_as: str
    """The fingerprint that the pool was created with: growing and judging again leave it, so that scores stay valid."""
    budgets: tuple[tuple[int, int], ...] | None = None
    """Runs of (problems, samples asked for of each), in the order of the problems. None: all of them, spec.k each."""
    generation: int = 1
    """Counts how often all samples were judged again."""
    version: int = FORMAT

    @classmethod
    def new(cls, spec: PoolSpec, problems: int, budgets: Sequence[int] | None = None) -> "Manifest":
        """Of a pool that is created. `budgets`: samples asked for of each problem, if not spec.k of all."""
        mark = spec.fingerprint()
        return cls(spec, (mark,), mark, _runs([spec.k] * problems if budgets is None else budgets))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Raises PoolError that says what is wrong with the folder."""
        path = folder / NAME
        content = _content(path)
        found: Any = content.get("format") if isinstance(content, dict) else None
        version: int = found if is_int(found) else 0
        if version > FORMAT:
            raise PoolError(
                f"{folder} is a pool of format {version}, this Offleash reads up to {FORMAT}: upgrade Offleash"
            )
        if version < 1 or not isinstance(content.get("spec"), dict):
            raise PoolError(f"{path} does not describe a pool (format {found!r}); restore it or sample a new pool")
        spec = PoolSpec.from_json(content["spec"])
        mark = spec.fingerprint() if version == FORMAT else spec.former_fingerprint()
        if mark != content.get("fingerprint"):
            raise PoolError(f"{path} was changed after the pool was created (its fingerprint differs): restore it")
        if version < FORMAT:
            return cls(spec, (mark,), mark, version=version)
        try:
            budgets = tuple((int(count), int(k)) for count, k in content["budgets"])
            stamps, created_as, generation = content["stamps"], content["created_as"], int(content["generation"])
            if max(k for _, k in budgets) != spec.k or min(min(run) for run in budgets) < 1 or generation < 1:
                raise ValueError("budgets, k and generation disagree")
        except (KeyError, TypeError, ValueError) as error:
            raise PoolError(f"{path} cannot be read ({error!r}); restore it or sample a new pool") from error
        return cls(spec, (mark, *map(str, stamps)), str(created_as), budgets, generation)

    def write(self, folder: Path) -> None:
        """In the newest format."""
        stamps = [stamp for stamp in self.stamps if stamp != self.spec.fingerprint()]
        self.spec.write(
            folder / NAME,
            FORMAT,
            created_as=self.created_as,
            stamps=stamps,
            generation=self.generation,
            budgets=self.budgets,
        )

    @property
    def is_former(self) -> bool:
        """Whether an earlier version of Offleash began the pool, which gave samples other seeds."""
        return self.version < FORMAT or len(self.stamps) > 1

    @property
    def kind(self) -> str:
        """The first part of the names of its parts."""
        return _of_generation("samples", self.generation)

    def problem_path(self, folder: Path) -> Path:
        return folder / f"{_of_generation('problems', self.generation)}.parquet"

    def asked(self, folder: Path) -> Asked:
        """What was asked for so far. Raises PoolError if the file of problems is missing, damaged or another one."""
        path = self.problem_path(folder)
        problems, answers = read_problems(path)
        if self.budgets is not None:
            count = sum(count for count, _ in self.budgets)
            problems, answers = problems[:count], answers[:count]
        if problems_fingerprint(problems) != self.spec.problems:
            raise PoolError(f"{path} does not hold the problems that {NAME} names; restore it or sample a new pool")
        budgets = self.budgets or ((len(problems), self.spec.k),)
        return problems, answers, [k for count, k in budgets for _ in range(count)]

    def grown(self, asked: Asked) -> "Manifest":
        """With the extent of `asked`, which holds all that was asked for before, in the same order."""
        problems, _, budgets = asked
        spec = replace(self.spec, k=max(budgets), problems=problems_fingerprint(problems))
        stamps = tuple(dict.fromkeys((spec.fingerprint(), *self.stamps)))
        return replace(self, spec=spec, budgets=_runs(budgets), stamps=stamps, version=FORMAT)


def create(
    folder: Path,
    spec: PoolSpec,
    problems: Sequence[Problem],
    answers: Answers | None,
    budgets: Sequence[int] | None = None,
) -> None:
    """Write an empty pool, `pool.json` last. `budgets`: samples asked for of each problem, if not k of all."""
    if problems_fingerprint(problems) != spec.problems:
        raise PoolError("the spec's problems fingerprint is not that of the problems: use problems_fingerprint")
    made = Manifest.new(spec, len(problems), budgets)
    write_problems(made.problem_path(folder), problems, [None] * len(problems) if answers is None else answers)
    made.write(folder)


def grow(folder: Path, problems: Sequence[Problem], answers: Answers | None, budgets: Sequence[int]) -> None:
    """Ask a pool for so many samples of each of these problems, beside all that it was asked for before.

    Raises PoolError, and changes nothing, for a problem that the pool has with another content.
    """
    if _lacks(folder, problems, answers, budgets) is None:
        return
    with growing(folder):
        found = _lacks(folder, problems, answers, budgets)
        if found is None:
            return
        manifest, before, after = found
        if len(after[0]) > len(before[0]):
            write_problems(manifest.problem_path(folder), after[0], after[1])
        manifest.grown(after).write(folder)


@contextmanager
def growing(folder: Path) -> Iterator[None]:
    """While the body runs, no other process replaces `pool.json`."""
    with awaited(folder, GROWING):
        yield


def _lacks(
    folder: Path, problems: Sequence[Problem], answers: Answers | None, asked: Sequence[int]
) -> tuple[Manifest, Asked, Asked] | None:
    """What the pool is, what it was asked for, and what with these problems; None if that is the same."""
    manifest = Manifest.read(folder)
    before = manifest.asked(folder)
    known, listed, budgets = list(before[0]), list(before[1]), list(before[2])
    place = {problem.id: i for i, problem in enumerate(known)}
    given: Answers = [None] * len(problems) if answers is None else answers
    check_content(folder, {problem.id: problem for problem in known}, problems)
    for problem, correct, k in zip(problems, given, asked, strict=True):
        at = place.setdefault(problem.id, len(known))
        if at == len(known):
            known.append(problem)
            listed.append(None if correct is None else tuple(correct))
            budgets.append(k)
        elif answers is not None and not _same(listed[at], correct):
            raise PoolError(
                f"{folder}: problem {problem.id!r} has other correct answers listed than in the pool, although the "
                "task's version is the same: change the version, or choose another folder"
            )
        budgets[at] = max(budgets[at], k)
    after = known, listed, budgets
    return None if len(known) == len(before[0]) and budgets == before[2] else (manifest, before, after)


def check_content(folder: Path, known: Mapping[str, Problem], problems: Sequence[Problem]) -> None:
    """Raises PoolError, naming the first, if a problem has another prompt or gold than the one known by its id."""
    for problem in problems:
        other = known.get(problem.id)
        if other is not None and _content_of(other) != _content_of(problem):
            what = "gold" if canonical_json(other.prompt) == canonical_json(problem.prompt) else "prompt"
            raise PoolError(
                f"{folder}: problem {problem.id!r} has another {what} now than in the pool: its samples are of the "
                "former one. Give the changed problem a new id, or choose another folder"
            )


def check_folder(folder: Path) -> None:
    """Raises PoolError, naming the first, if a folder that is not a pool yet holds other files."""
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise PoolError(f"cannot read {folder}: {error.strerror or error}; choose another folder") from error
    if NAME in names or (folder / NAME).exists():
        return
    if any(name.startswith("samples") and name.endswith(".parquet") for name in names):
        raise PoolError(f"{folder} holds samples but no {NAME}: restore it, or choose another folder")
    own = ("problems.parquet", LOCK, GROWING)
    if others := [name for name in names if name not in own and not TEMPORARY.fullmatch(name)]:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise PoolError(
            f"{folder} is not a pool and holds other files ({others[0]}{more}): choose a new or an empty folder"
        )


def _content(path: Path) -> Any:
    check_is_file(path)
    folder = path.parent
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        what = f"is not a pool: it has no {NAME}" if folder.is_dir() else "does not exist"
        raise PoolError(f"{folder} {what}; check the path, or sample a pool there first") from None
    except OSError as error:
        raise PoolError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise PoolError(f"{path} is not readable as JSON ({error}); restore it or sample a new pool") from error


def _runs(budgets: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((len(list(run)), int(k)) for k, run in groupby(budgets))


def _of_generation(name: str, generation: int) -> str:
    return name if generation == 1 else f"{name}.{generation}"


def _content_of(problem: Problem) -> str:
    return canonical_json([problem.prompt, problem.gold])


def _same(one: Sequence[str] | None, other: Sequence[str] | None) -> bool:
    return (one is None) == (other is None) and sorted(one or ()) == sorted(other or ())
