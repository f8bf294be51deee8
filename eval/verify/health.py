"""Whether the verifier can be trusted: gold answers before a run, its own failures during it.

A gold that cannot be verified against itself makes every sample wrong, or right. Failures are what the verifier does to
answers that it should manage: one that takes longer than its gold ("timeout") is the model's, and wrong.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from offleash.eval.errors import ConfigError, VerifyError
from offleash.eval.problem import Problem, Status, Task, Verdict
from offleash.eval.verify.extract import CLOSE
from offleash.eval.verify.verdicts import verdicts_of

FEW, MANY, SEVERAL = 8, 16, 3


class _Tally:
    """Verdicts and failures of each problem."""

    def __init__(self) -> None:
        self.judged, self.failed = Counter[Hashable](), Counter[Hashable]()

    def add(self, problems: Sequence[Hashable], failed: Sequence[Hashable]) -> None:
        self.judged.update(problems)
        self.failed.update(failed)

    def rate(self, problem: Hashable) -> float:
        """0 for a problem without verdicts."""
        return self.failed[problem] / max(self.judged[problem], 1)

    def without(self, other: "_Tally") -> "_Tally":
        """What was there before `other` was added."""
        rest = _Tally()
        rest.judged, rest.failed = self.judged - other.judged, self.failed - other.failed
        return rest


@dataclass(slots=True)
class Failures:
    """Counts verdicts by status. `check` raises if the verifier fails too often, or is down. One problem decides
    neither: a plan that stops after some successes draws one on which it fails again and again.

    Too often: over `limit`, of the verdicts and also in the mean over problems, each without the problem that has most
    of it, once `minimum` verdicts are left. So problems of many draws do not decide, nor do problems of few.

    Down: of the latest verdicts, on at least three problems, it fails on over half more than it did on the same
    problems before (in their mean, without the worst). Where batches are of one or two problems they add up until there
    are three, or until it has managed 16 of one. At the end of a stream, where only one or two are left, 16 verdicts
    will do, after 16 earlier ones of each; also if no others were judged at all. A verifier that has never worked is
    down after 8 verdicts.

    In 2400 simulated pools of 8, 30 or 64 problems, drawn until 5 successes and at most 256 times, a never solved
    problem on which the verifier fails at any rate ended none. A verifier that goes down ended every pool that had 16
    verdicts to come (a stream after 19 in the median). The tests have such simulations, smaller.

    What the model brings about (no answer, truncated, timeout) is counted, and never raises: a policy cannot stop its
    run by what it writes.
    """

    limit: float = 0.01
    minimum: int = 200
    counts: Counter[str] = field(default_factory=Counter)
    message: str = ""
    """What the verifier said when it last failed."""
    _all: _Tally = field(default_factory=_Tally)
    _latest: _Tally = field(default_factory=_Tally)

    def add(self, problems: Sequence[Hashable], verdicts: Sequence[Verdict]) -> None:
        """Verdicts, and which problem each is of: its id or its number."""
        message = next((one.message for one in reversed(verdicts) if one.failed and one.message), "")
        self.add_statuses(problems, [verdict.status for verdict in verdicts], message)

    def add_statuses(self, problems: Sequence[Hashable], statuses: Sequence[str], message: str) -> None:
        """As `add`, of verdicts that were made elsewhere; `message` is that of the last failure."""
        failed = [problem for problem, status in zip(problems, statuses, strict=True) if status == "error"]
        if self._telling() or self._manages_one():
            self._latest = _Tally()
        self.counts.update(statuses)
        self._all.add(problems, failed)
        self._latest.add(problems, failed)
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
        if self._latest.failed and (self._is_too_often() or self._is_down()):
            raise VerifyError(
                f"the verifier failed on {self.failed} of {self.total} completions"
                f"{f' (the last: {self.message})' if self.message else ''}, on {len(self._all.failed)} of "
                f"{len(self._all.judged)} problems, over the limit of {self.limit:.1%}: no number from this run can be "
                "trusted. Inspect the failing answers, or restart the judge (the limit is --max-verifier-failures of "
                "`offleash sample`)."
            )

    def _is_too_often(self) -> bool:
        judged, failed = self._all.judged, self._all.failed
        worst, most = failed.most_common(1)[0]
        verdicts = self.total - judged[worst]
        if verdicts < max(self.minimum, 1) or self.failed - most <= self.limit * verdicts:
            return False
        return _mean_without_worst([self._all.rate(problem) for problem in judged]) > self.limit

    def _is_down(self) -> bool:
        problems = self._telling()
        before = self._all.without(self._latest) if problems else _Tally()
        return bool(problems) and _mean_without_worst([self._latest.rate(p) - before.rate(p) for p in problems]) > 0.5

    def _manages_one(self) -> bool:
        """Whether the latest verdicts show that it was up: it did not fail on most of some problem's."""
        latest = self._latest
        return any(count >= MANY and latest.rate(problem) <= 0.5 for problem, count in latest.judged.items())

    def _telling(self) -> list[Hashable]:
        """Problems whose latest verdicts tell a verifier that is down from a problem on which it fails; or none yet."""
        latest, ever = self._latest.judged, self._all.judged
        if len(latest) >= SEVERAL or self.failed == self.total:
            return list(latest) if latest.total() >= FEW else []
        is_all = len(latest) == len(ever)
        known = [problem for problem, count in latest.items() if is_all or ever[problem] - count >= MANY]
        return known if sum(latest[problem] for problem in known) >= MANY else []


def _mean_without_worst(numbers: Sequence[float]) -> float:
    """Without the largest, if there are others."""
    kept = sorted(numbers)[: max(len(numbers) - 1, 1)]
    return sum(kept) / len(kept)


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
