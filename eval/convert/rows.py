"""The rows of an import checked and numbered: their samples' indices, problems and verdicts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offleash.eval.convert.files import Found
from offleash.eval.convert.readers import native_rows
from offleash.eval.convert.readers.record import Record
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.spec import MAX_K
from offleash.eval.pool.store import valid_text
from offleash.eval.problem import Problem, Status, Task, Verdict

FEW_CELLS, SPARSE = 100_000_000, 100
"""A pool keeps a byte for each possible sample: more than FEW_CELLS, and SPARSE times the samples, is a mistake."""


def number_records(found: Found, records: Sequence[Record]) -> None:
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


def _check_keys(found: Found, records: Sequence[Record]) -> None:
    """Raises ConfigError if a sample is there twice, as prime-rl's `all` and `effective` rollouts have them."""
    _check_once(found, [(record, (record.key,)) for record in records if record.key], "sample {0!r}")


def _check_once(found: Found, keys: Sequence[tuple[Record, tuple[Any, ...]]], what: str) -> None:
    first: dict[tuple[Any, ...], Record] = {}
    bad = []
    for record, key in keys:
        known = first.setdefault(key, record)
        if known is not record:
            where = "" if known.file == record.file else f" of {found.paths[known.file]}"
            bad.append((record, f"repeats {what.format(*key)} of line {known.line}{where}"))
    found.check(bad, len(keys))


def largest_index(found: Found, records: Sequence[Record], problems: int) -> int:
    """Raises ConfigError if a pool with such an index would be nearly empty and fill the memory."""
    far = max(records, key=lambda record: record.index or 0)
    largest = far.index or 0
    if largest >= MAX_K or problems * largest > max(FEW_CELLS, SPARSE * len(records)):
        raise ConfigError(
            f"{found.paths[far.file]}: line {far.line} has index {largest:,}, in a file of {len(records):,} "
            f"samples of {problems:,} problems: number the samples of each problem from 0, or leave index out"
        )
    return largest


def own_problems(found: Found, records: Sequence[Record]) -> tuple[list[Problem], list[tuple[str, ...] | None]]:
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


def task_problems(
    found: Found, records: Sequence[Record], task: Task
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


def _problem_order(path: Path) -> dict[str, int]:
    """The place of each problem in the pool that a folder was exported from; empty for anything else."""
    if not (path / "pool.json").is_file():
        return {}
    try:
        about = json.loads((path / "pool.json").read_text(encoding="utf-8"))
        return {name: index for index, name in enumerate(about.get("problem_ids", ()))}
    except (AttributeError, OSError, RecursionError, TypeError, ValueError) as error:
        raise PoolError(f"{path / 'pool.json'} cannot be read ({error}): export the pool again") from error


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


def given_verdicts(records: Sequence[Record]) -> list[Verdict]:
    return [
        Verdict(one.answer, bool(one.correct), _status_of(one), one.extracted_by, spelling=one.spelling)
        for one in records
    ]


def check_verdicts(found: Found, records: Sequence[Record], answers: Mapping[str, Sequence[str] | None]) -> None:
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


def recorded_statuses(records: Sequence[Record], task: Task | None) -> list[str]:
    """The statuses that a sample would have if it were the case: of others, none on record does not mean none."""
    given = all(record.status is not None for record in records)
    judged = given or task is not None
    cut = given or all(record.truncated is not None for record in records)
    return [*(["truncated"] if cut else []), *(["timeout", "error"] if judged else [])]
