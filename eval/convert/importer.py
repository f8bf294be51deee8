"""Importing samples as pools: every row is read and checked first, then a pool is written atomically.

Files are read twice. The first time everything but the completions is kept, each distinct text once; the second time
completions are verified and written group by group. So memory holds a few hundred bytes for each row, however long the
completions and prompts are.

Verdicts are taken from the files, unless a task is given: then the task supplies the problems and verifies every
completion. Sampling settings that are not given are recorded as unknown: -1 for a number, "unknown" for a name. A
dataset folder that was exported from a pool has all of them in its pool.json.

Several files of one training step are one pool. Several steps are one pool each: a series.
"""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offleash.eval.convert.dumps import read_records, records_of_row
from offleash.eval.convert.formats import AUTO, Format, check_lines, numbered_rows
from offleash.eval.convert.readers import native_rows
from offleash.eval.convert.readers.record import Reading, Record
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


@dataclass(frozen=True, slots=True)
class _Found:
    """What the first reading of the files found; `records` are without the text of their completions."""

    paths: tuple[Path, ...]
    ends: Mapping[Path, int]
    form: Format
    reading: Reading
    records: list[Record]
    ignored: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.paths[0]) if len(self.paths) == 1 else f"{self.paths[0]} and {len(self.paths) - 1} more"

    def check(self, bad: Sequence[tuple[Record, str]], rows: int) -> None:
        """Raises ConfigError that lists the bad lines of the first file that has any."""
        if bad:
            file = min(record.file for record, _ in bad)
            check_lines(self.paths[file], [(one.line, why) for one, why in bad if one.file == file], rows)


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
    found = _find(paths, reading, task, option, ends)
    records = _of_step(found, step)
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
    found = _find(paths, reading, task, option, None)
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
    found: _Found,
    records: list[Record],
    folder: Path,
    task: Task | None,
    model: str,
    sampling: Mapping[str, float],
) -> Imported:
    """Write a pool of some of the records; where it is written is not yet where it will be."""
    _check_kinds(found, records)
    _number(found, records)
    problems, answers = _own_problems(found, records) if task is None else _task_problems(found, records, task)
    if task is None:
        _check_verdicts(found, records, dict(zip((problem.id for problem in problems), answers, strict=True)))
    k = _largest_index(found, records, len(problems)) + 1
    step = records[0].step
    paths = [found.paths[number] for number in sorted({record.file for record in records})]
    spec = replace(_spec_of(found.form, paths, step, task, model, sampling), problems=problems_fingerprint(problems))
    if spec.engine == ENGINE:
        spec = replace(spec, versions={ENGINE: " ".join(_recorded_statuses(records, task))})
    judge = _given_verdicts if task is None else _Verifier(task, problems)
    groups = _with_completions(found, records, step)
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
    if pool.exists() and (not pool.is_dir() or any(pool.iterdir())):
        raise PoolError(f"{pool} already exists and is not empty: choose another folder")


def _find(
    paths: Path | Sequence[Path],
    reading: Reading | None,
    task: Task | None,
    option: str,
    ends: Mapping[Path, int] | None,
) -> _Found:
    """Read the files a first time."""
    paths = (paths,) if isinstance(paths, Path) else tuple(paths)
    _check_paths(paths)
    reading = replace(reading or Reading(), verdicts=task is None)
    shared = _Shared()
    forms: dict[Path, Format] = {}
    records: list[Record] = []
    ignored: set[str] = set()
    for number, path in enumerate(paths):
        form, some, unused = read_records(path, reading, option, (ends or {}).get(path), shared.slimmed)
        if form is None:
            raise ConfigError(f"{path} has no samples")
        forms[path] = form
        for record in some:
            record.file = number
        records += some
        ignored |= unused
    form = next(iter(forms.values()))
    if other := next((path for path, its in forms.items() if its is not form), None):
        raise ConfigError(f"{paths[0]} is {form.name} and {other} is {forms[other].name}: import one format at a time")
    found = _Found(paths, ends or {}, form, reading, records, tuple(sorted(ignored)))
    _check_choices(found)
    return found


def _check_paths(paths: Sequence[Path]) -> None:
    if not paths:
        raise ConfigError("no file to import: name at least one")
    counts = Counter(path.resolve() for path in paths)
    if repeated := next((path for path in paths if counts[path.resolve()] > 1), None):
        raise ConfigError(f"{repeated} is given twice: its samples would count twice")


def _check_choices(found: _Found) -> None:
    """Raises ConfigError if the files leave something open, or have nothing of what was chosen."""
    reading, records = found.reading, found.records
    if reading.answer and found.form.answers:
        raise ConfigError(f"--answer is for files without answers of their own, and {found.form.name} files have them")
    if not records:
        of_filter = f" of filter {reading.filter!r}" if reading.filter else ""
        raise ConfigError(f"{found.name} has no samples{of_filter}")
    filters = sorted({record.filter for record in records if record.filter})
    if len(filters) > 1:
        raise ConfigError(f"{found.name} has {len(filters)} filters ({', '.join(filters)}): choose one with --filter")
    names = sorted({record.judged_by for record in records if record.judged_by})
    if len(names) > 1:
        raise ConfigError(f"{found.name} is judged by {' and '.join(names)} in different lines: choose with --correct")


def _of_step(found: _Found, step: int | None) -> list[Record]:
    """The records of one training step: the one asked for, or the only one."""
    steps = sorted({record.step for record in found.records}, key=lambda one: (one is not None, one or 0))
    listed = ", ".join("unknown" if one is None else str(one) for one in steps[:20]) + (
        ", ..." if len(steps) > 20 else ""
    )
    if step is None and len(steps) > 1:
        raise ConfigError(
            f"{found.name} has samples of {len(steps)} training steps ({listed}): choose one with --step, or make a "
            "pool of each with --steps all"
        )
    if step is not None and step not in steps:
        raise ConfigError(f"{found.name} has no samples of step {step}; it has {listed}")
    return found.records if step is None else [record for record in found.records if record.step == step]


def _check_kinds(found: _Found, records: Sequence[Record]) -> None:
    kinds = sorted({record.kind for record in records})
    if len(kinds) > 1:
        raise ConfigError(f"{found.name} mixes {' and '.join(kind or 'unknown' for kind in kinds)}: import them apart")


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """A hidden name for a folder that appears at the end, complete. Raises PoolError if it cannot be written."""
    try:
        with atomic_path(folder) as temporary:
            yield temporary
    except OSError as error:
        raise PoolError(f"cannot make the pool {folder}: {error.strerror or error}") from error


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
            "judged_by",
            "kind",
            "filter",
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


def _with_completions(found: _Found, records: Sequence[Record], step: int | None) -> Iterator[Sequence[Record]]:
    """The records with their completions, read again, in groups of bounded size."""
    group: list[Record] = []
    chars = 0
    by_file: dict[int, list[Record]] = {}
    for record in records:
        by_file.setdefault(record.file, []).append(record)
    for number, expected in by_file.items():
        for record, again in _read_again(found, found.paths[number], expected, step):
            group.append(replace(record, completion=again.completion))
            chars += len(again.completion or "")
            if len(group) >= PART_ROWS or chars >= PART_CHARS:
                yield group
                group, chars = [], 0
    if group:
        yield group


def _read_again(
    found: _Found, path: Path, expected: Sequence[Record], step: int | None
) -> Iterator[tuple[Record, Record]]:
    """Each record of a file as it was and as it is now. Raises ConfigError if the file changed."""
    place, of_path = 0, found.form.step_of(path)
    for line, row in numbered_rows(path, found.ends.get(path)):
        changed = ConfigError(f"{path} changed while it was read, at line {line}: import it again")
        if not isinstance(row, dict):
            raise changed
        for again in records_of_row(found.form, row, found.reading, line, of_path):
            if again.step != step:
                continue
            if place == len(expected) or expected[place].line != line:
                raise changed
            yield expected[place], again
            place += 1
    if place < len(expected):
        raise ConfigError(f"{path} changed while it was read: it ends before line {expected[place].line}")


def _largest_index(found: _Found, records: Sequence[Record], problems: int) -> int:
    """Raises ConfigError if a pool with such an index would be nearly empty and fill the memory."""
    far = max(records, key=lambda record: record.index or 0)
    largest = far.index or 0
    if largest >= MAX_K or problems * largest > max(FEW_CELLS, SPARSE * len(records)):
        raise ConfigError(
            f"{found.paths[far.file]}: line {far.line} has index {largest:,}, in a file of {len(records):,} "
            f"samples of {problems:,} problems: number the samples of each problem from 0, or leave index out"
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


def _number(found: _Found, records: Sequence[Record]) -> None:
    """Give every record an index: the one in the file, or counted per problem if the files have none.

    Samples with ids of their own, of several files, are counted on from file to file.
    """
    without = [record for record in records if record.index is None]
    if len(without) < len(records):
        found.check([(record, "has no index, but other lines do") for record in without], len(records))
    _check_keys(found, records)
    if len({record.file for record in records}) > 1 and all(record.key for record in records):
        without = sorted(records, key=lambda record: (record.file, record.index or 0))
    counts: Counter[str] = Counter()
    for record in without:
        record.index = counts[record.problem_id]
        counts[record.problem_id] += 1
    _check_once(found, [(record, (record.problem_id, record.index)) for record in records], "problem {0!r}, index {1}")


def _check_keys(found: _Found, records: Sequence[Record]) -> None:
    """Raises ConfigError if a sample is there twice, as prime-rl's `all` and `effective` rollouts have them."""
    _check_once(found, [(record, (record.key,)) for record in records if record.key], "sample {0!r}")


def _check_once(found: _Found, keys: Sequence[tuple[Record, tuple[Any, ...]]], what: str) -> None:
    first: dict[tuple[Any, ...], Record] = {}
    bad = []
    for record, key in keys:
        known = first.setdefault(key, record)
        if known is not record:
            where = "" if known.file == record.file else f" of {found.paths[known.file]}"
            bad.append((record, f"repeats {what.format(*key)} of line {known.line}{where}"))
    found.check(bad, len(keys))


def _own_problems(found: _Found, records: Sequence[Record]) -> tuple[list[Problem], list[tuple[str, ...] | None]]:
    """The problems of the files, and all correct answers of each where they are known.

    Other systems write problems in any order, a different one at every step: theirs are put in the order of their ids.
    """
    first: dict[str, Record] = {}
    bad = []
    for record in records:
        known = first.setdefault(record.problem_id, record)
        if known is record:
            bad += [(record, f"{name} holds a lone surrogate and cannot be stored") for name in _surrogates(record)]
        elif what := _changed(record, known):
            bad.append((record, f"gives problem {record.problem_id!r} a different {what} than an earlier line"))
    found.check(bad, len(records))
    place = _problem_order(found.paths[0])
    is_own = found.form.columns == native_rows.COLUMNS
    ordered = sorted(
        first.values(),
        key=lambda one: (place.get(one.problem_id, len(place)), "" if is_own else one.problem_id),
    )
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
    found: _Found, records: Sequence[Record], task: Task
) -> tuple[list[Problem], list[Sequence[str] | None]]:
    """Give every record the id of its problem of the task, found by id or by question; those problems, with all
    correct answers of each where they are known."""
    by_id = {problem.id: problem for problem in task.problems}
    by_text = {key: problem for problem in task.problems if (key := str(problem.meta.get("question", "")).strip())}
    bad = []
    clash: Counter[tuple[str, int | None]] = Counter()
    for record in records:
        match = by_id.get(record.problem_id) or by_text.get(record.question.strip())
        if match is None:
            bad.append(
                (record, f"problem {record.problem_id!r} is not one of task {task.name!r}, by id or by question")
            )
            continue
        record.problem_id = match.id
        clash[match.id, record.index] += 1
    bad += [(record, "has no completion to verify") for record in records if record.completion is None]
    found.check(bad, len(records))
    if doubled := [key for key, count in clash.items() if count > 1]:
        raise ConfigError(
            f"{found.name}: several problems of the file match the same problem of the task, e.g. {doubled[0][0]!r}"
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


def _check_verdicts(found: _Found, records: Sequence[Record], answers: Mapping[str, Sequence[str] | None]) -> None:
    reasons = ((record, _objection(record, answers[record.problem_id])) for record in records)
    found.check([(record, reason) for record, reason in reasons if reason], len(records))


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
    said |= {name: int(said[name]) for name in ("top_k", "max_new_tokens") if name in said}
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
