"""Whether the verifier can be trusted: gold answers before a run, its own failures during it.

A gold that cannot be verified against itself makes every sample wrong, or right. Failures are what the verifier does to
answers that it should manage: one that takes longer than its gold ("timeout") is the model's, and wrong.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.problem import Problem, Status, Task, Verdict
from offleash.eval.verify.extract import CLOSE
from offleash.eval.verify.verdicts import verdicts_of

FEW = 8


@dataclass(slots=True)
class Failures:
    """Counts verdicts by status. `check` raises once errors are over `limit` of at least `minimum` verdicts, or over
    half of the last batch: then a judge or a worker is down, however well it went before.

    The minimum keeps one failure among three from stopping a run. What the model brings about (no answer, truncated,
    timeout) is counted, and never raises: a policy cannot stop its run by what it writes.
    """

    limit: float = 0.01
    minimum: int = 200
    counts: Counter[str] = field(default_factory=Counter)
    last: list[bool] = field(default_factory=list)
    message: str = ""
    """What the verifier said when it last failed."""

    def add(self, verdicts: Iterable[Verdict]) -> None:
        batch = list(verdicts)
        message = next((one.message for one in reversed(batch) if one.failed and one.message), "")
        self.add_statuses([verdict.status for verdict in batch], message)

    def add_statuses(self, statuses: Sequence[str], message: str) -> None:
        """As `add`, of verdicts that were made elsewhere; `message` is that of the last failure."""
        self.counts.update(statuses)
        self.last = [status == "error" for status in statuses]
        self.message = message or self.message

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def failed(self) -> int:
        return self.counts["error"]

    def rates(self) -> dict[str, float]:
        """Fraction of each status; NaN before the first verdict."""
        total = self.total or float("nan")
        return {status: self.counts[status] / total for status in get_args(Status)}

    def check(self) -> None:
        often = self.total >= self.minimum and self.failed > self.limit * self.total
        if often or (len(self.last) >= FEW and sum(self.last) > len(self.last) / 2):
            raise VerifyError(
                f"the verifier failed on {self.failed} of {self.total} completions"
                f"{f' (the last: {self.message})' if self.message else ''}, over the limit of {self.limit:.1%}: no "
                "number from this run can be trusted. Inspect the failing answers, or restart the judge (the limit is "
                "--max-verifier-failures of `offleash sample`)."
            )


def states_golds(task: Task) -> bool:
    """Whether the task says how its golds are checked; one that computes its answers need not."""
    return any(getattr(task, part, None) is not None for part in ("gold_faults", "gold_completion"))


def bad_golds(task: Task) -> list[tuple[str, str]]:
    """(problem id, reason) of every gold that cannot be used.

    A task may have `gold_faults()`, which says so itself, or `gold_completion(problem)`, a completion that must be
    judged correct (None where the problem states no solution). A task with neither cannot be checked: ConfigError.
    """
    if not states_golds(task):
        raise ConfigError(f"the golds of task {task.name!r} cannot be checked: give it gold_completion(problem)")
    faults = getattr(task, "gold_faults", None)
    found: list[tuple[str, str]] = list(faults()) if faults is not None else []
    bad = {problem_id for problem_id, _ in found}
    written = [(problem, gold_reply(task, problem)) for problem in task.problems if problem.id not in bad]
    checked = [(problem, reply) for problem, reply in written if reply is not None]
    verdicts = verdicts_of(task.verify, [problem for problem, _ in checked], [reply for _, reply in checked])
    for (problem, _), verdict in zip(checked, verdicts, strict=True):
        if not (verdict.correct and verdict.status == "ok"):
            status = f"{verdict.status}, {verdict.message}" if verdict.message else verdict.status
            found.append((problem.id, f"gold {problem.gold[:60]!r} is not judged correct (status {status})"))
    return found


def gold_reply(task: Task, problem: Problem) -> str | None:
    """A whole completion that gives the gold; None where the task or the problem states none."""
    completion_of = getattr(task, "gold_completion", None)
    completion = None if completion_of is None else completion_of(problem)
    if completion is None:
        return None
    return f"{CLOSE if getattr(task, 'thinking', False) else ''}{completion}"  # the prompt has opened a think block
