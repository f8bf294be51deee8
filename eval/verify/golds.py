"""Gold answers are checked before anything is sampled: one that cannot be verified against itself makes every sample
wrong, or right.
"""

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Task

SHOWN = 10


def check_golds(task: Task) -> list[tuple[str, str]]:
    """(problem id, reason) of every gold that cannot be used.

    A task may have `gold_faults()`, which says so itself, or `gold_completion(problem)`, a completion that must be
    judged correct (None where the problem states no solution). A task with neither cannot be checked: TypeError.
    """
    faults = getattr(task, "gold_faults", None)
    found: list[tuple[str, str]] = list(faults()) if faults is not None else []
    completion_of = getattr(task, "gold_completion", None)
    if completion_of is None:
        if faults is None:
            raise TypeError(f"task {task.name!r} has neither gold_faults nor gold_completion")
        return found
    bad = {problem_id for problem_id, _ in found}
    written = [(problem, completion_of(problem)) for problem in task.problems if problem.id not in bad]
    checked = [(problem, completion) for problem, completion in written if completion is not None]
    verdicts = task.verify([problem for problem, _ in checked], [completion for _, completion in checked])
    for (problem, _), verdict in zip(checked, verdicts, strict=True):
        if not (verdict.correct and verdict.status == "ok"):
            found.append((problem.id, f"gold {problem.gold[:60]!r} is not judged correct (status {verdict.status})"))
    return found


def require_golds(task: Task) -> None:
    """Refuse a task whose golds cannot all be verified, naming the bad ones."""
    bad = check_golds(task)
    if bad:
        shown = "; ".join(f"{problem_id}: {reason}" for problem_id, reason in bad[:SHOWN])
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise ConfigError(
            f"{len(bad)} of {len(task.problems)} gold answers of task {task.name!r} cannot be used: {shown}{more}. "
            "Correct them or leave those problems out."
        )
