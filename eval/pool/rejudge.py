"""Judging stored completions again, after the verifier changed: no sample is drawn, and every verdict is new.

A pool is judged in place by writing all of its samples anew, part by part, under the names of another generation. Until
the last part is there the former verdicts hold; then `pool.json` is replaced, and the former parts are removed. A run
that was killed goes on where it was. Or the samples of one pool are judged on their way into another, and both stay.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.lock import held
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.manifest import NAME, Manifest, check_content, growing
from offleash.eval.pool.pool import Pool, parts_of
from offleash.eval.pool.rows import SCHEMA, rows_table
from offleash.eval.pool.store import Chunk, Parts, write_problems
from offleash.eval.problem import Problem, RewardedTask, Task
from offleash.eval.storage import path_at
from offleash.eval.tasks import check_task_name, load_task
from offleash.eval.transcript import final_turn
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import Verify, verdicts_of

_VERDICT = ("answer", "spelling", "correct", "status", "extracted_by")


@dataclass(slots=True)
class Changes:
    """How new verdicts differ from the former ones."""

    samples: int = 0
    verdicts: int = 0
    """With another answer, another status or another outcome."""
    to_correct: int = 0
    to_wrong: int = 0

    def add(self, former: pa.Table, new: pa.Table) -> None:
        before, after = (table.select(["correct", "answer", "status"]).to_pylist() for table in (former, new))
        self.samples += len(after)
        for old, now in zip(before, after, strict=True):
            self.verdicts += old != now
            self.to_correct += now["correct"] and not old["correct"]
            self.to_wrong += old["correct"] and not now["correct"]


class Rejudged(NamedTuple):
    """A pool after it was judged again, and what changed."""

    pool: Pool
    changes: Changes
    before: float
    """pass@1 by the former verdicts; NaN for a plan that stops early and is not complete."""
    after: float
    removed: int
    """Samples that a plan which stops early would not have drawn, by the new verdicts."""

    def __str__(self) -> str:
        seen = self.changes
        removed = f"; {self.removed:,} samples after the last success of the plan removed" if self.removed else ""
        return (
            f"judged {seen.samples:,} stored completions again: {seen.verdicts:,} verdicts changed "
            f"({seen.to_wrong:,} correct -> wrong, {seen.to_correct:,} wrong -> correct), "
            f"pass@1 {self.before:.4f} -> {self.after:.4f}{removed}"
        )


def rejudge_pool(
    path: str | Path,
    task: str | Task | None = None,
    *,
    task_args: dict[str, Any] | None = None,
    max_verifier_failures: float = 0.01,
) -> Rejudged:
    """Judge the completions of a pool again, by the verifier as it is now, and replace all verdicts at once.

    `task` is a Task, or the name of one, built with `task_args`; by default the one that the pool names. It must have
    the problems of the pool. Raises PoolError, and changes nothing, if completions were not stored or the problems
    differ; VerifyError if the verifier fails too often. The same call goes on after a crash.

    >>> from offleash.eval import Sampling, load_task, rejudge_pool, sample_pool
    >>> task = load_task("countdown", split="probe", n=4)
    >>> pool = sample_pool("lab", task, "pools/judged", k=8, sampling=Sampling(max_new_tokens=20), progress=False)
    >>> done = rejudge_pool("pools/judged", task)
    >>> done.changes.samples, done.changes.verdicts, done.before == done.after
    (32, 0, True)
    """
    folder = path_at(path)
    if task_args and not (task is None or isinstance(task, str)):
        raise ConfigError(f"task_args are for a task given by name; {task.name!r} is built already")
    Manifest.read(folder)
    with held(folder, f"another process is sampling or judging {folder}: wait for it, then run the same command again"):
        pool = Pool.open(folder)
        if task is None or isinstance(task, str):
            loaded = load_task(task or _named_task(pool), **(task_args or {}))
            try:
                return _rejudge(pool, loaded, Failures(limit=max_verifier_failures))
            finally:
                close = getattr(loaded, "close", None)  # tasks with worker processes have one
                if close is not None:
                    close()
        return _rejudge(pool, task, Failures(limit=max_verifier_failures))


def _named_task(pool: Pool) -> str:
    """The task that a pool names, if that is enough to load it."""
    try:
        check_task_name(pool.spec.task)
    except ConfigError:
        raise ConfigError(
            f"{pool.path} is a pool of {pool.spec.task!r}, which is not the name of a task that Offleash has: give the "
            "task that it was sampled with, --task my_module:MyTask or --data FILE and its columns"
        ) from None
    return pool.spec.task


def adopt(
    pool: Pool, task: Task, others: Path, failures: Failures, verify: Verify | None = None
) -> list[tuple[Pool, Changes]]:
    """Take what a pool lacks from the pools in a folder whose samples are of the same model, settings and seed.

    Where their verifier is another one, the completions are judged again, by `verify` if given. Returns from which
    pools samples were taken; those are not changed. What cannot be read, or was sampled otherwise, is passed over.
    """
    found: list[Pool] = []
    for path in sorted(others.glob(f"*/{NAME}")):
        with suppress(PoolError):
            if path.parent.resolve() != pool.path.resolve() and (other := _fitting(pool, Pool.open(path.parent), task)):
                found.append(other)
    taken = [
        (other, _take(pool, other, failures, verify or task.verify))
        for other in sorted(found, key=lambda other: other.spec.task_version != pool.spec.task_version)
    ]
    return [(other, changes) for other, changes in taken if changes.samples]


def check_problems(pool: Pool, task: Task) -> None:
    """Raises PoolError, naming the first, if the task lacks a problem of the pool or has it with another content."""
    of_task = {problem.id: problem for problem in task.problems}
    if absent := [name for name in pool.problem_ids if name not in of_task]:
        raise PoolError(
            f"task {task.name!r} lacks {len(absent):,} problems of {pool.path}, such as {absent[0]!r}: give "
            "the --task and --task-args that the pool was sampled with"
        )
    check_content(pool.path, of_task, pool.problems)


def _rejudge(pool: Pool, task: Task, failures: Failures) -> Rejudged:
    if task.name != pool.spec.task:
        raise PoolError(f"{pool.path} is a pool of task {pool.spec.task!r}, not of {task.name!r}: give its own --task")
    if absent := pool.parts.lacks_values("completion"):
        raise PoolError(
            f"{pool.path}: {absent:,} samples have no completion stored, so they cannot be judged again: import or "
            "sample them with their completions"
        )
    if not _can_judge(pool, task):
        raise PoolError(
            f"{pool.path} has rollouts of several turns, whose reward was taken while they were played: they cannot be "
            "judged again, only sampled anew"
        )
    check_problems(pool, task)
    before = Ledger(pool).pass_at_1(pool.spec.k)
    made = _next_generation(pool, task)
    parts, changes = parts_of(pool.path, made), Changes()
    is_other = task.version != pool.spec.task_version  # otherwise what is left may be by an earlier state of the task
    _discard(parts, {_name(path, pool.parts) for path in pool.parts.paths()} if is_other else set())
    for path in pool.parts.paths():
        _judge_part(pool, task, path, parts, changes, failures)
    answers = [task.correct_answers(problem) for problem in pool.problems]
    write_problems(made.problem_path(pool.path), pool.problems, answers)
    removed = _cut(Pool(pool.path, made, made.spec, None))
    with growing(pool.path):
        made.write(pool.path)
    _remove_former(pool)
    judged = Pool.open(pool.path)
    return Rejudged(judged, changes, before, Ledger(judged).pass_at_1(judged.spec.k), removed)


def _next_generation(pool: Pool, task: Task) -> Manifest:
    now = Manifest.read(pool.path)
    spec = replace(now.spec, task_version=task.version)
    budgets = now.budgets or ((len(pool.problem_ids), spec.k),)
    return replace(now, spec=spec, stamps=(spec.fingerprint(),), budgets=budgets, generation=now.generation + 1)


def _discard(parts: Parts, names: set[str]) -> None:
    """Remove what an earlier attempt left, but for parts of these names that were judged by this very verifier."""
    for path in parts.paths():
        with suppress(PoolError):  # by another verifier, or damaged
            if _name(path, parts) in names:
                next(parts.read(path, ["index"]), None)
                continue
        path.unlink(missing_ok=True)


def _judge_part(pool: Pool, task: Task, path: Path, parts: Parts, changes: Changes, failures: Failures) -> None:
    """Write one part with new verdicts, under the same time and id; one that is there already is only counted."""
    name, former = _name(path, pool.parts), _table(pool.parts, path)
    target = parts.folder / f"{parts.kind}-{name}"
    if target.exists() and len(done := _table(parts, target)) == len(former):
        changes.add(former, done)
        return
    made = _judged(pool, task.verify, former, failures)
    changes.add(former, made)
    parts.write(made, name)


def _cut(pool: Pool) -> int:
    """Remove what a plan that stops early would not have drawn, and return how many samples that were."""
    if (successes := pool.spec.plan.successes) is None:
        return 0
    stop = dict(zip(pool.problem_ids, Ledger(pool).stop_p(successes, pool.spec.k).tolist(), strict=True))
    removed = 0
    for path in pool.parts.paths():
        table = _table(pool.parts, path)
        pairs = zip(table["problem_id"].to_pylist(), table["index"].to_pylist(), strict=True)
        kept = [index < stop[name] for name, index in pairs]
        removed += len(kept) - sum(kept)
        if not any(kept):
            path.unlink()
        elif not all(kept):
            pool.parts.write(table.filter(pa.array(kept)), _name(path, pool.parts))
    return removed


def _remove_former(pool: Pool) -> None:
    """The samples and problems of a generation that is no longer valid."""
    for path in (*pool.parts.paths(), pool.manifest.problem_path(pool.path)):
        path.unlink(missing_ok=True)


def _can_judge(pool: Pool, task: Task) -> bool:
    """Whether stored completions are all that the verifier looks at."""
    return not (pool.spec.multi_turn and isinstance(task, RewardedTask))


def _fitting(pool: Pool, other: Pool, task: Task) -> Pool | None:
    """The part of another pool that this one may take samples from; None if there is none."""
    if other.spec.differences(pool.spec) and not (other.spec.is_judged_otherwise(pool.spec) and _can_judge(pool, task)):
        return None
    mine = {problem.id: problem for problem in pool.problems}
    shared = [p.id for p in other.problems if p.id in mine and _content(p) == _content(mine[p.id])]
    return other.only(shared, min(pool.spec.k, other.spec.k)) if shared else None


def _take(pool: Pool, other: Pool, failures: Failures, verify: Verify) -> Changes:
    changes, seen_pk = Changes(), pool.seen()
    place = {name: i for i, name in enumerate(pool.problem_ids)}
    place_p = np.array([place[name] for name in other.problem_ids], dtype=np.int64)
    for chunk in _readable(other):
        problem_r = place_p[chunk.problem_r]
        stored_r = chunk.columns.column("completion").is_valid().to_numpy(zero_copy_only=False)
        new = np.flatnonzero(~seen_pk[problem_r, chunk.index_r] & stored_r)
        if not len(new):
            continue
        former = pa.Table.from_batches([chunk.take(new).columns]).cast(SCHEMA)
        same = other.spec.task_version == pool.spec.task_version
        table = former if same else _judged(pool, verify, former, failures)
        changes.add(former, table)
        pool.append(table)
        seen_pk[problem_r[new], chunk.index_r[new]] = True
    return changes


def _readable(pool: Pool) -> Iterator[Chunk]:
    """The samples up to a damaged part."""
    with suppress(PoolError):
        yield from pool.scan(SCHEMA.names)


def _judged(pool: Pool, verify: Verify, table: pa.Table, failures: Failures) -> pa.Table:
    """The same samples with new verdicts."""
    problems = {problem.id: problem for problem in pool.problems}
    rows = table.select(["problem_id", "completion", "status", "tokens", "truncated"]).to_pylist()
    said = final_turn if pool.spec.multi_turn else str
    verdicts = verdicts_of(
        verify,
        [problems[row["problem_id"]] for row in rows],
        [said(row["completion"]) for row in rows],
        [_was_truncated(row, pool.spec.max_new_tokens) for row in rows],
    )
    failures.add([row["problem_id"] for row in rows], verdicts)
    failures.check()
    new = {name: [getattr(verdict, name) for verdict in verdicts] for name in _VERDICT}
    return rows_table({**{name: table[name] for name in table.column_names}, **new})


def _was_truncated(row: Mapping[str, Any], longest: int) -> bool:
    """As recorded; of older pools, whose parts do not say it, by the verdict or the number of tokens."""
    if row["truncated"] is not None:
        return bool(row["truncated"])
    return row["status"] == "truncated" or row["tokens"] == longest


def _table(parts: Parts, path: Path) -> pa.Table:
    batches = [pa.Table.from_batches([batch]).cast(SCHEMA) for batch in parts.read(path, SCHEMA.names)]
    return pa.concat_tables([SCHEMA.empty_table(), *batches])


def _name(path: Path, parts: Parts) -> str:
    """The time and the id of a part."""
    return path.name.removeprefix(f"{parts.kind}-")


def _content(problem: Problem) -> str:
    return problems_fingerprint([problem])
