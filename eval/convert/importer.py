"""Importing samples as pools: every row is read and checked first, then a pool is written atomically.

Verdicts are taken from the files, unless a task is given: then the task supplies the problems and verifies every
completion. Sampling settings that are not given are recorded as unknown: -1 for a number, "unknown" for a name. A
dataset folder that was exported from a pool has all of them in its pool.json.

Several files of one training step are one pool. Several steps are one pool each: a series.
"""

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offleash.eval.convert.files import Found, check_kinds, of_step, read_files, with_completions
from offleash.eval.convert.formats import AUTO, Format
from offleash.eval.convert.readers.record import Reading, Record
from offleash.eval.convert.rows import (
    check_verdicts,
    given_verdicts,
    largest_index,
    number_records,
    own_problems,
    recorded_statuses,
    task_problems,
)
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.files import atomic_path
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.problem import Problem, Task, Verdict
from offleash.eval.sampling import Plan
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import verdicts_of

ENGINE = "import"
"""The engine of a pool whose file does not name another; its "version" lists the statuses that the file records."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""The numeric sampling settings of a pool."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported: the format of the files, counts, the columns that were ignored, the score that was the
    verdict ("" if the file says `correct` or a task verified), and the training step where there is one.
    """

    format: str
    problems: int
    samples: int
    fewest: int
    most: int
    correct: int
    ignored: tuple[str, ...]
    judged_by: str = ""
    step: int | None = None
    pool: Path = Path()


def import_samples(
    paths: Path | Sequence[Path],
    pool: Path,
    *,
    task: Task | None = None,
    reading: Reading | None = None,
    model: str = "unknown",
    sampling: Mapping[str, float] | None = None,
    option: str = AUTO,
    step: int | None = None,
    ends: Mapping[Path, int] | None = None,
) -> Imported:
    """Make a pool of the samples of one or more files; `sampling` holds what is known of SAMPLING.

    `option` is the format, `step` the training step to take if the files hold several, and `ends` how many bytes of a
    JSONL file to read, if it is still being written (see `read_dump`).
    Raises ConfigError that lists the invalid lines, PoolError for the folder; writes nothing then.
    """
    _check_target(pool)
    found = read_files(paths, reading, task, option, ends)
    records = of_step(found, step)
    with _made(pool) as temporary:
        made = _import_records(found, records, temporary, task, model, sampling or {})
    return replace(made, pool=pool)


def import_series(
    paths: Path | Sequence[Path],
    folder: Path,
    *,
    task: Task | None = None,
    reading: Reading | None = None,
    model: str = "unknown",
    sampling: Mapping[str, float] | None = None,
    option: str = AUTO,
) -> list[Imported]:
    """Make one pool for each training step, `folder/step-000100` and so on: all of them or none.

    Raises ConfigError that lists the invalid lines, PoolError for the folder; writes nothing then.
    """
    _check_target(folder)
    found = read_files(paths, reading, task, option, None)
    without = [record for record in found.records if record.step is None]
    found.check([(record, "names no training step") for record in without], len(found.records))
    by_step: dict[int, list[Record]] = {}
    for record in found.records:
        by_step.setdefault(record.step or 0, []).append(record)
    made = []
    with _made(folder) as temporary:
        temporary.mkdir()
        for step, records in sorted(by_step.items()):
            name = f"step-{step:06d}"
            done = _import_records(found, records, temporary / name, task, model, sampling or {})
            made.append(replace(done, pool=folder / name))
    return made


def _import_records(
    found: Found,
    records: list[Record],
    folder: Path,
    task: Task | None,
    model: str,
    sampling: Mapping[str, float],
) -> Imported:
    """Write a pool of some of the records; where it is written is not yet where it will be."""
    check_kinds(found, records)
    number_records(found, records)
    problems, answers = own_problems(found, records) if task is None else task_problems(found, records, task)
    if task is None:
        check_verdicts(found, records, dict(zip((problem.id for problem in problems), answers, strict=True)))
    k = largest_index(found, records, len(problems)) + 1
    step = records[0].step
    paths = [found.paths[number] for number in sorted({record.file for record in records})]
    spec = replace(_spec_of(found.form, paths, step, task, model, sampling), problems=problems_fingerprint(problems))
    if spec.engine == ENGINE:
        spec = replace(spec, versions={ENGINE: " ".join(recorded_statuses(records, task))})
    judge = given_verdicts if task is None else _Verifier(task, problems)
    groups = with_completions(found, records, step)
    parts = ([_sample(*pair) for pair in zip(group, judge(group), strict=True)] for group in groups)
    correct = _write(folder, replace(spec, k=max(k, spec.k)), problems, answers, parts)
    counts = Counter(record.problem_id for record in records).values()
    judged_by = max(record.judged_by for record in records)
    return Imported(
        found.form.name,
        len(problems),
        len(records),
        min(counts),
        max(counts),
        correct,
        found.ignored,
        judged_by,
        step,
    )


def _check_target(pool: Path) -> None:
    try:
        taken = pool.exists() and (not pool.is_dir() or any(pool.iterdir()))
    except OSError as error:
        raise PoolError(f"cannot make the pool {pool}: {error.strerror or error}") from error
    if taken:
        raise PoolError(f"{pool} already exists and is not empty: choose another folder")


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """A hidden name for a folder that appears at the end, complete. Raises PoolError if it cannot be written."""
    try:
        with atomic_path(folder) as temporary:
            yield temporary
    except OSError as error:
        raise PoolError(f"cannot make the pool {folder}: {error.strerror or error}") from error


class _Verifier:
    """The verdicts of a task, group by group. Raises VerifyError if the verifier failed too often."""

    def __init__(self, task: Task, problems: Sequence[Problem]) -> None:
        self.task, self.failures = task, Failures()
        self.by_id = {problem.id: problem for problem in problems}

    def __call__(self, records: Sequence[Record]) -> list[Verdict]:
        completions = [record.completion or "" for record in records]
        truncated = [bool(record.truncated) for record in records]
        problems = [self.by_id[record.problem_id] for record in records]
        verdicts = verdicts_of(self.task.verify, problems, completions, truncated)
        self.failures.add([record.problem_id for record in records], verdicts)
        self.failures.check()
        return verdicts


_MEASURED = ("tokens", "logprob", "base_logprob", "entropy", "completion", "truncated")


def _sample(record: Record, verdict: Verdict) -> Sample:
    assert record.index is not None, "records are numbered before they become samples"
    measured = {name: getattr(record, name) for name in _MEASURED}
    return Sample.judged(record.problem_id, record.index, verdict, **measured)


def _spec_of(
    form: Format,
    paths: Sequence[Path],
    step: int | None,
    task: Task | None,
    model: str,
    sampling: Mapping[str, float],
) -> PoolSpec:
    """As given, then from the pool.json of an exported folder, otherwise unknown."""
    is_exported = len(paths) == 1 and (paths[0] / "pool.json").is_file()
    known = Pool.open(paths[0]).spec if is_exported else _unknown_spec(paths, step)
    said: dict[str, Any] = form.settings(paths[0]) if form.settings else {}
    said |= sampling
    for name in set(SAMPLING) & set(said):
        whole = name in ("top_k", "max_new_tokens")
        if not math.isfinite(said[name]) or (whole and said[name] % 1):
            raise ConfigError(f"{name} must be {'a whole number' if whole else 'a number'}, got {said[name]}")
        said[name] = int(said[name]) if whole else said[name]
    if model != "unknown":
        said["model"] = model
    if task is not None:
        # A plan that stopped after some successes did so by other verdicts.
        said |= {"task": task.name, "task_version": task.version, "plan": Plan()}
    return replace(known, **said)


def _unknown_spec(paths: Sequence[Path], step: int | None) -> PoolSpec:
    sampling: dict[str, Any] = dict.fromkeys(SAMPLING, -1)
    return PoolSpec(
        task="imported",
        task_version="as given",
        problems="",
        template="unknown",
        model="unknown",
        revision="" if step is None else f"step-{step}",
        weights=f"imported-{_fingerprint(paths, step)}",
        **sampling,
        stop=(),
        seed="unknown",
        k=1,
        plan=Plan(),
        engine=ENGINE,
        dtype="unknown",
    )


def _fingerprint(paths: Sequence[Path], step: int | None) -> str:
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*.arrow")) if path.is_dir() else [path]:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    if step is not None:
        digest.update(str(step).encode())
    return digest.hexdigest()[:16]


def _write(
    folder: Path,
    spec: PoolSpec,
    problems: Sequence[Problem],
    answers: Sequence[Sequence[str] | None],
    parts: Iterable[Sequence[Sample]],
) -> int:
    """The number of correct samples."""
    made = Pool.create(folder, spec, problems, answers)
    correct = 0
    for part in parts:
        made.append(part)
        correct += sum(sample.correct for sample in part)
    return correct
