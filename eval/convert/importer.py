"""Importing samples as a pool: every row is read and checked first, then the pool is written atomically.

Verdicts are taken from the file, unless a task is given: then the task supplies the problems and verifies every
completion. Sampling settings that are not given are recorded as unknown: -1 for a number, "unknown" for a name. A
dataset folder that was exported from a pool has all of them in its pool.json.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offleash.eval.convert.formats import COLUMNS, Format, Reading, Record, check_lines, numbered_rows, recognize
from offleash.eval.convert.values import BadRow
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.files import atomic_path
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.pool.store import valid_text
from offleash.eval.problem import Problem, Status, Task, Verdict
from offleash.eval.sampling import Plan
from offleash.eval.verify.health import Failures

PART_ROWS = 100_000
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""The numeric sampling settings of a pool."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is known about the sampling. `sampling` holds any of the numeric sampling settings of PoolSpec."""

    model: str = "unknown"
    sampling: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported: the format of the file, counts, and the columns that were ignored."""

    format: str
    problems: int
    samples: int
    fewest: int
    most: int
    correct: int
    ignored: tuple[str, ...]


def import_samples(
    path: Path,
    pool: Path,
    *,
    task: Task | None = None,
    reading: Reading | None = None,
    source: Source | None = None,
) -> Imported:
    """Make a pool. Raises ConfigError that lists the invalid lines, PoolError for the folder; writes nothing then."""
    _check_target(pool)
    reading = reading or Reading()
    reading = Reading(reading.filter, reading.metric, reading.threshold, verdicts=task is None)
    form, lines, ignored = _read_records(path, reading)
    _put_in_order(lines, path)
    records = [record for _, record in lines]
    _number(lines, path)
    problems, answers, where = _problems_of(lines, task, path)
    verdicts = _given_verdicts(lines, where, answers, path) if task is None else _verify(records, where, problems, task)
    samples = [_sample(*one) for one in zip(records, (problems[place] for place in where), verdicts, strict=True)]
    counts = Counter(sample.problem_id for sample in samples)
    k = 1 + max(sample.index for sample in samples)
    _write(pool, _spec_of(path, problems, task, k, source or Source()), problems, answers, samples)
    return Imported(
        form.name,
        len(problems),
        len(samples),
        min(counts.values()),
        max(counts.values()),
        sum(sample.correct for sample in samples),
        ignored,
    )


def _check_target(pool: Path) -> None:
    if pool.exists() and (not pool.is_dir() or any(pool.iterdir())):
        raise PoolError(f"{pool} already exists and is not empty: choose another folder")


def _read_records(path: Path, reading: Reading) -> tuple[Format, list[tuple[int, Record]], tuple[str, ...]]:
    """The format, the records with their line numbers, and the columns that are ignored."""
    form: Format | None = None
    lines: list[tuple[int, Record]] = []
    bad: list[tuple[int, str]] = []
    ignored: set[str] = set()
    rows = 0
    for line, row in numbered_rows(path):
        rows += 1
        if not isinstance(row, dict):
            bad.append((line, str(row) if isinstance(row, BadRow) else "is not a JSON object"))
            continue
        form = form or recognize(set(row), f"{path}, line {line},")
        if missing := sorted(form.columns - row.keys()):
            bad.append((line, f"has no {', '.join(missing)}"))
            continue
        try:
            lines += [(line, record) for record in form.records(row, reading)]
        except BadRow as error:
            bad.append((line, str(error)))
        except ConfigError:
            raise
        except (LookupError, OverflowError, TypeError, ValueError) as error:
            bad.append((line, f"cannot be read as {form.name} ({type(error).__name__}: {str(error)[:80]})"))
        if form.name == "offleash":
            ignored |= row.keys() - set(COLUMNS)
    check_lines(path, bad, rows)
    if form is None or not lines:
        of_filter = f" of filter {reading.filter!r}" if reading.filter else ""
        raise ConfigError(f"{path} has no samples{of_filter}")
    filters = sorted({record.filter for _, record in lines})
    if len(filters) > 1:
        raise ConfigError(f"{path} has {len(filters)} filters ({', '.join(filters)}): choose one with --filter")
    return form, lines, tuple(sorted(ignored))


def _put_in_order(lines: list[tuple[int, Record]], path: Path) -> None:
    """Sort the records by the problem order of the pool that a folder was exported from."""
    if not (path / "pool.json").is_file():
        return
    try:
        about = json.loads((path / "pool.json").read_text(encoding="utf-8"))
        place = {name: index for index, name in enumerate(about.get("problem_ids", ()))}
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise PoolError(f"{path / 'pool.json'} cannot be read ({error}): export the pool again") from error
    lines.sort(key=lambda numbered: place.get(numbered[1].problem_id, len(place)))


def _number(lines: Sequence[tuple[int, Record]], path: Path) -> None:
    """Give every record an index: the one in the file, or counted per problem if the file has none."""
    given = [line for line, record in lines if record.index is not None]
    if given and len(given) < len(lines):
        bad = [(line, "has no index, but other lines do") for line, record in lines if record.index is None]
        check_lines(path, bad, len(lines))
    counts: Counter[str] = Counter()
    first: dict[tuple[str, int], int] = {}
    bad = []
    for line, record in lines:
        if record.index is None:
            record.index = counts[record.problem_id]
            counts[record.problem_id] += 1
        key = (record.problem_id, record.index)
        if key in first:
            bad.append((line, f"repeats problem {key[0]!r}, index {key[1]} of line {first[key]}"))
        first.setdefault(key, line)
    check_lines(path, bad, len(lines))


def _problems_of(
    lines: Sequence[tuple[int, Record]], task: Task | None, path: Path
) -> tuple[list[Problem], list[tuple[str, ...] | None], list[int]]:
    """The problems, all correct answers of each where they are known, and the problem (by place) of each record."""
    if task is not None:
        return _task_problems(lines, task, path)
    place: dict[str, int] = {}
    problems: list[Problem] = []
    answers: list[tuple[str, ...] | None] = []
    bad = []
    for line, record in lines:
        prompt, gold = record.prompt if record.prompt is not None else record.question, record.gold or ""
        if record.problem_id not in place:
            place[record.problem_id] = len(problems)
            problems.append(Problem(record.problem_id, prompt, gold, record.meta))
            answers.append(None if record.all_answers is None else tuple(record.all_answers))
            bad += [(line, f"{name} holds a lone surrogate and cannot be stored") for name in _surrogates(record)]
        index = place[record.problem_id]
        if what := _changed(record, prompt, problems[index], answers[index]):
            bad.append((line, f"gives problem {record.problem_id!r} a different {what} than an earlier line"))
    check_lines(path, bad, len(lines))
    return problems, answers, [place[record.problem_id] for _, record in lines]


def _surrogates(record: Record) -> list[str]:
    """The fields with lone surrogates, which a pool cannot store."""
    texts = {
        "problem_id": record.problem_id,
        "gold": record.gold or "",
        "all_answers": "".join(record.all_answers or ()),
    }
    return [name for name, text in texts.items() if valid_text(text) != text]


def _changed(record: Record, prompt: Any, known: Problem, listed: Sequence[str] | None) -> str | None:
    """The first field of its problem that a line gives differently from the first line with that problem."""
    differs = {
        "prompt": prompt and prompt != known.prompt,
        "gold": record.gold and record.gold != known.gold,
        "meta": record.meta and not _same(record.meta, known.meta),
        "all_answers": record.all_answers is not None and (listed is None or set(record.all_answers) != set(listed)),
    }
    return next((name for name, is_so in differs.items() if is_so), None)


def _same(*objects: Mapping[str, Any]) -> bool:
    """As JSON, because NaN is not equal to itself."""
    return len({json.dumps(one, sort_keys=True, default=str) for one in objects}) == 1


def _task_problems(
    lines: Sequence[tuple[int, Record]], task: Task, path: Path
) -> tuple[list[Problem], list[tuple[str, ...] | None], list[int]]:
    """Records matched to a task's problems: by id, or else by the text of the question."""
    by_id = {problem.id: problem for problem in task.problems}
    by_text = {key: problem for problem in task.problems if (key := str(problem.meta.get("question", "")).strip())}
    found = [by_id.get(record.problem_id) or by_text.get(record.question.strip()) for _, record in lines]
    bad = [
        (line, f"problem {record.problem_id!r} is not one of task {task.name!r}, by id or by question")
        for (line, record), problem in zip(lines, found, strict=True)
        if problem is None
    ]
    bad += [(line, "has no completion to verify") for line, record in lines if record.completion is None]
    check_lines(path, bad, len(lines))
    named = {problem.id for problem in found if problem is not None}
    problems = [problem for problem in task.problems if problem.id in named]
    place = {problem.id: index for index, problem in enumerate(problems)}
    clash = Counter((problem.id, record.index) for problem, (_, record) in zip(found, lines, strict=True) if problem)
    if doubled := [key for key, count in clash.items() if count > 1]:
        raise ConfigError(
            f"{path}: several problems of the file match the same problem of the task, e.g. {doubled[0][0]!r}"
        )
    return problems, [task.correct_answers(p) for p in problems], [place[p.id] for p in found if p is not None]


def _verify(records: Sequence[Record], where: Sequence[int], problems: Sequence[Problem], task: Task) -> list[Verdict]:
    """The verdicts of the task. Raises VerifyError if the verifier failed too often."""
    completions = [record.completion or "" for record in records]
    verdicts = task.verify([problems[place] for place in where], completions, [record.truncated for record in records])
    failures = Failures()
    failures.add(verdicts)
    failures.check()
    return verdicts


def _given_verdicts(
    lines: Sequence[tuple[int, Record]], where: Sequence[int], answers: Sequence[Sequence[str] | None], path: Path
) -> list[Verdict]:
    reasons = [(line, _objection(record, answers[place])) for (line, record), place in zip(lines, where, strict=True)]
    check_lines(path, [(line, reason) for line, reason in reasons if reason], len(lines))
    return [Verdict(one.answer, bool(one.correct), _status_of(one), one.extracted_by) for _, one in lines]


def _objection(record: Record, listed: Sequence[str] | None) -> str:
    """What is wrong with the verdict of a record; "" if it is fine."""
    if record.correct is None:
        return "has no verdict (correct): give one, or name a --task"
    if record.correct and record.status in ("timeout", "error"):
        return f"is correct with status {record.status!r}, which means that it could not be verified"
    if record.correct and listed is not None and record.answer not in listed:
        return f"is correct with answer {record.answer!r:.40}, which is not among the all_answers of its problem"
    return ""


def _status_of(record: Record) -> Status:
    """The given status, or what the other columns imply: in a file with answers, a missing one means "no_answer"."""
    if record.status is not None:
        return record.status
    if record.correct or record.answer is not None:
        return "ok"
    if record.truncated:
        return "truncated"
    return "no_answer" if record.answered else "ok"


def _sample(record: Record, problem: Problem, verdict: Verdict) -> Sample:
    assert record.index is not None, "records are numbered before they become samples"
    judged = (verdict.answer, verdict.correct, verdict.status, verdict.extracted_by)
    measured = (record.tokens, record.logprob, record.base_logprob, record.entropy)
    return Sample(problem.id, record.index, *judged, *measured, record.completion)


def _spec_of(path: Path, problems: Sequence[Problem], task: Task | None, k: int, source: Source) -> PoolSpec:
    """From `source`, then from the pool.json of an exported folder, otherwise unknown."""
    known = Pool.open(path).spec if (path / "pool.json").is_file() else _unknown_spec(path)
    said: dict[str, Any] = dict(source.sampling or {})
    said |= {name: int(said[name]) for name in ("top_k", "max_new_tokens") if name in said}
    if source.model != "unknown":
        said["model"] = source.model
    if task is not None:
        # A plan that stopped after some successes did so by other verdicts.
        said |= {"task": task.name, "task_version": task.version, "plan": Plan()}
    return replace(known, problems=problems_fingerprint(problems), k=max(k, known.k), **said)


def _unknown_spec(path: Path) -> PoolSpec:
    sampling: dict[str, Any] = dict.fromkeys(SAMPLING, -1)
    return PoolSpec(
        task="imported",
        task_version="as given",
        problems="",
        template="unknown",
        model="unknown",
        revision="",
        weights=f"imported-{_fingerprint(path)}",
        **sampling,
        stop=(),
        seed="unknown",
        k=1,
        plan=Plan(),
        engine="import",
        dtype="unknown",
    )


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.arrow")) if path.is_dir() else [path]:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def _write(
    pool: Path,
    spec: PoolSpec,
    problems: Sequence[Problem],
    answers: Sequence[Sequence[str] | None],
    samples: Sequence[Sample],
) -> None:
    try:
        with atomic_path(pool) as temporary:
            made = Pool.create(temporary, spec, problems, answers)
            for start in range(0, len(samples), PART_ROWS):
                made.append(samples[start : start + PART_ROWS])
    except OSError as error:
        raise PoolError(f"cannot make the pool {pool}: {error.strerror or error}") from error
