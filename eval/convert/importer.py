"""Importing samples as a pool: every row is read and checked first, then the pool is written atomically.

The file is read twice. The first time everything but the completions is kept, each distinct text once; the second time
completions are verified and written group by group. So memory holds a few hundred bytes for each row, however long the
completions and prompts are.

Verdicts are taken from the file, unless a task is given: then the task supplies the problems and verifies every
completion. Sampling settings that are not given are recorded as unknown: -1 for a number, "unknown" for a name. A
dataset folder that was exported from a pool has all of them in its pool.json.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from offleash.eval.pool.spec import MAX_K, PoolSpec
from offleash.eval.pool.store import valid_text
from offleash.eval.problem import Problem, Status, Task, Verdict
from offleash.eval.sampling import Plan
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import verdicts_of

PART_ROWS, PART_CHARS = 100_000, 200_000_000
"""The most that is verified and written at once."""
FEW_CELLS, SPARSE = 100_000_000, 100
"""A pool keeps a byte for each possible sample: more than FEW_CELLS, and SPARSE times the samples, is a mistake."""
ENGINE = "import"
"""The engine of a pool whose file does not name another; its "version" lists the statuses that the file records."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""The numeric sampling settings of a pool."""


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
    model: str = "unknown",
    sampling: Mapping[str, float] | None = None,
) -> Imported:
    """Make a pool; `sampling` holds what is known of SAMPLING.

    Raises ConfigError that lists the invalid lines, PoolError for the folder; writes nothing then.
    """
    _check_target(pool)
    reading = replace(reading or Reading(), verdicts=task is None)
    form, records, ignored = _read_records(path, reading)
    _number(records, path)
    problems, answers = _own_problems(records, path) if task is None else _task_problems(records, task, path)
    if task is None:
        _check_verdicts(records, dict(zip((problem.id for problem in problems), answers, strict=True)), path)
    k = _largest_index(records, len(problems), path) + 1
    spec = replace(_spec_of(path, task, model, sampling or {}), problems=problems_fingerprint(problems))
    if spec.engine == ENGINE:
        spec = replace(spec, versions={ENGINE: " ".join(_recorded_statuses(records, task))})
    judge = _given_verdicts if task is None else _Verifier(task, problems)
    groups = _with_completions(records, path, form, reading)
    parts = ([_sample(*pair) for pair in zip(group, judge(group), strict=True)] for group in groups)
    correct = _write(pool, replace(spec, k=max(k, spec.k)), problems, answers, parts)
    counts = Counter(record.problem_id for record in records).values()
    return Imported(form.name, len(problems), len(records), min(counts), max(counts), correct, ignored)


def _check_target(pool: Path) -> None:
    if pool.exists() and (not pool.is_dir() or any(pool.iterdir())):
        raise PoolError(f"{pool} already exists and is not empty: choose another folder")


def _read_records(path: Path, reading: Reading) -> tuple[Format, list[Record], tuple[str, ...]]:
    """The format, the records without the text of their completions, and the columns that are ignored."""
    shared = _Shared()
    form: Format | None = None
    records: list[Record] = []
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
            for record in form.records(row, reading):
                record.line = line
                records.append(shared.slimmed(record))
        except BadRow as error:
            bad.append((line, str(error)))
        except ConfigError:
            raise
        except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
            bad.append((line, f"cannot be read as {form.name} ({type(error).__name__}: {str(error)[:80]})"))
        if form.name == "offleash":
            ignored |= row.keys() - COLUMNS
    check_lines(path, bad, rows)
    if form is None or not records:
        of_filter = f" of filter {reading.filter!r}" if reading.filter else ""
        raise ConfigError(f"{path} has no samples{of_filter}")
    filters = sorted({record.filter for record in records})
    if len(filters) > 1:
        raise ConfigError(f"{path} has {len(filters)} filters ({', '.join(filters)}): choose one with --filter")
    return form, records, tuple(sorted(ignored))


class _Shared:
    """Equal values of different rows as one object."""

    def __init__(self) -> None:
        self.known: dict[tuple[type, str], Any] = {}

    def slimmed(self, record: Record) -> Record:
        """Without the text of its completion: "" stands for any."""
        for name in (
            "problem_id",
            "answer",
            "spelling",
            "extracted_by",
            "prompt",
            "question",
            "gold",
            "meta",
            "all_answers",
        ):
            setattr(record, name, self._one(getattr(record, name)))
        record.completion = None if record.completion is None else ""
        return record

    def _one(self, value: Any) -> Any:
        if not value:
            return value
        key = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        return self.known.setdefault((type(value), key), value)


def _with_completions(
    records: Sequence[Record], path: Path, form: Format, reading: Reading
) -> Iterator[Sequence[Record]]:
    """The records with their completions, read again, in groups of bounded size."""
    group: list[Record] = []
    chars, place = 0, 0
    for line, row in numbered_rows(path):
        for again in form.records(row, reading):
            if place == len(records) or records[place].line != line:
                raise ConfigError(f"{path} changed while it was read, at line {line}: import it again")
            group.append(replace(records[place], completion=again.completion))
            chars, place = chars + len(again.completion or ""), place + 1
            if len(group) >= PART_ROWS or chars >= PART_CHARS:
                yield group
                group, chars = [], 0
    if group:
        yield group


def _largest_index(records: Sequence[Record], problems: int, path: Path) -> int:
    """Raises ConfigError if a pool with such an index would be nearly empty and fill the memory."""
    far = max(records, key=lambda record: record.index or 0)
    largest = far.index or 0
    if largest >= MAX_K or problems * largest > max(FEW_CELLS, SPARSE * len(records)):
        raise ConfigError(
            f"{path}: line {far.line} has index {largest:,}, in a file of {len(records):,} samples of {problems:,} "
            "problems: number the samples of each problem from 0, or leave index out"
        )
    return largest


def _problem_order(path: Path) -> dict[str, int]:
    """The place of each problem in the pool that a folder was exported from; empty for anything else."""
    if not (path / "pool.json").is_file():
        return {}
    try:
        about = json.loads((path / "pool.json").read_text(encoding="utf-8"))
        return {name: index for index, name in enumerate(about.get("problem_ids", ()))}
    except (AttributeError, OSError, RecursionError, TypeError, ValueError) as error:
        raise PoolError(f"{path / 'pool.json'} cannot be read ({error}): export the pool again") from error


def _number(records: Sequence[Record], path: Path) -> None:
    """Give every record an index: the one in the file, or counted per problem if the file has none."""
    without = [record for record in records if record.index is None]
    if len(without) < len(records):
        check_lines(path, [(record.line, "has no index, but other lines do") for record in without], len(records))
    counts: Counter[str] = Counter()
    first: dict[tuple[str, int], int] = {}
    bad = []
    for record in records:
        if record.index is None:
            record.index = counts[record.problem_id]
            counts[record.problem_id] += 1
        key = (record.problem_id, record.index)
        if key in first:
            bad.append((record.line, f"repeats problem {key[0]!r}, index {key[1]} of line {first[key]}"))
        first.setdefault(key, record.line)
    check_lines(path, bad, len(records))


def _own_problems(records: Sequence[Record], path: Path) -> tuple[list[Problem], list[tuple[str, ...] | None]]:
    """The problems of the file, and all correct answers of each where they are known."""
    first: dict[str, Record] = {}
    bad = []
    for record in records:
        known = first.setdefault(record.problem_id, record)
        if known is record:
            bad += [
                (record.line, f"{name} holds a lone surrogate and cannot be stored") for name in _surrogates(record)
            ]
        elif what := _changed(record, known):
            bad.append((record.line, f"gives problem {record.problem_id!r} a different {what} than an earlier line"))
    check_lines(path, bad, len(records))
    place = _problem_order(path)
    ordered = sorted(first.values(), key=lambda one: place.get(one.problem_id, len(place)))
    problems = [Problem(one.problem_id, _prompt(one), one.gold or "", one.meta) for one in ordered]
    return problems, [None if one.all_answers is None else tuple(one.all_answers) for one in ordered]


def _prompt(record: Record) -> str | list[dict[str, Any]]:
    return record.question if record.prompt is None else record.prompt


def _surrogates(record: Record) -> list[str]:
    """The fields with lone surrogates, which a pool cannot store."""
    texts = {
        "problem_id": record.problem_id,
        "gold": record.gold or "",
        "all_answers": "".join(record.all_answers or ()),
    }
    return [name for name, text in texts.items() if valid_text(text) != text]


def _changed(record: Record, known: Record) -> str | None:
    """The first field of its problem that a line gives differently from the first line with that problem."""
    differs = {
        "prompt": _prompt(record) and _prompt(record) != _prompt(known),
        "gold": record.gold and record.gold != known.gold,
        "meta": record.meta and not _same(record.meta, known.meta),
        "all_answers": record.all_answers is not None
        and (known.all_answers is None or set(record.all_answers) != set(known.all_answers)),
    }
    return next((name for name, is_so in differs.items() if is_so), None)


def _same(*objects: Mapping[str, Any]) -> bool:
    """As JSON, because NaN is not equal to itself."""
    return len({json.dumps(one, sort_keys=True, default=str) for one in objects}) == 1


def _task_problems(
    records: Sequence[Record], task: Task, path: Path
) -> tuple[list[Problem], list[Sequence[str] | None]]:
    """Give every record the id of its problem of the task, found by id or by question; those problems, with all
    correct answers of each where they are known."""
    by_id = {problem.id: problem for problem in task.problems}
    by_text = {key: problem for problem in task.problems if (key := str(problem.meta.get("question", "")).strip())}
    bad = []
    clash: Counter[tuple[str, int | None]] = Counter()
    for record in records:
        found = by_id.get(record.problem_id) or by_text.get(record.question.strip())
        if found is None:
            reason = f"problem {record.problem_id!r} is not one of task {task.name!r}, by id or by question"
            bad.append((record.line, reason))
            continue
        record.problem_id = found.id
        clash[found.id, record.index] += 1
    bad += [(record.line, "has no completion to verify") for record in records if record.completion is None]
    check_lines(path, bad, len(records))
    if doubled := [key for key, count in clash.items() if count > 1]:
        raise ConfigError(
            f"{path}: several problems of the file match the same problem of the task, e.g. {doubled[0][0]!r}"
        )
    named = {record.problem_id for record in records}
    problems = [problem for problem in task.problems if problem.id in named]
    return problems, [task.correct_answers(problem) for problem in problems]


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
        self.failures.add(verdicts)
        self.failures.check()
        return verdicts


def _given_verdicts(records: Sequence[Record]) -> list[Verdict]:
    return [
        Verdict(one.answer, bool(one.correct), _status_of(one), one.extracted_by, spelling=one.spelling)
        for one in records
    ]


def _check_verdicts(records: Sequence[Record], answers: Mapping[str, Sequence[str] | None], path: Path) -> None:
    reasons = ((record.line, _objection(record, answers[record.problem_id])) for record in records)
    check_lines(path, [(line, reason) for line, reason in reasons if reason], len(records))


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


def _recorded_statuses(records: Sequence[Record], task: Task | None) -> list[str]:
    """The statuses that a sample would have if it were the case: of others, none on record does not mean none."""
    given = all(record.status is not None for record in records)
    judged = given or task is not None
    cut = given or all(record.truncated is not None for record in records)
    return [*(["truncated"] if cut else []), *(["timeout", "error"] if judged else [])]


def _sample(record: Record, verdict: Verdict) -> Sample:
    assert record.index is not None, "records are numbered before they become samples"
    measured = {name: getattr(record, name) for name in ("tokens", "logprob", "base_logprob", "entropy", "completion")}
    return Sample.judged(record.problem_id, record.index, verdict, **measured)


def _spec_of(path: Path, task: Task | None, model: str, sampling: Mapping[str, float]) -> PoolSpec:
    """As given, then from the pool.json of an exported folder, otherwise unknown."""
    known = Pool.open(path).spec if (path / "pool.json").is_file() else _unknown_spec(path)
    said: dict[str, Any] = dict(sampling)
    said |= {name: int(said[name]) for name in ("top_k", "max_new_tokens") if name in said}
    if model != "unknown":
        said["model"] = model
    if task is not None:
        # A plan that stopped after some successes did so by other verdicts.
        said |= {"task": task.name, "task_version": task.version, "plan": Plan()}
    return replace(known, **said)


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
        engine=ENGINE,
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
    parts: Iterable[Sequence[Sample]],
) -> int:
    """The number of correct samples."""
    correct = 0
    try:
        with atomic_path(pool) as temporary:
            made = Pool.create(temporary, spec, problems, answers)
            for part in parts:
                made.append(part)
                correct += sum(sample.correct for sample in part)
    except OSError as error:
        raise PoolError(f"cannot make the pool {pool}: {error.strerror or error}") from error
    return correct
