"""A dry call of a task: its mistakes become one line, before anything is sampled.

Every method that a run will need is called once, on harmless completions: the gold where a task can write it, otherwise
a number in a box, and an empty text where that was not judged. A problem that the verifier cannot judge at all is
refused by its id. The tasks of Offleash itself have tests of their own and are not called.
"""

from collections.abc import Sequence
from typing import Any, get_args

from offleash.eval.errors import ConfigError, OffleashError, first_line
from offleash.eval.problem import Problem, Status, Task, Verdict
from offleash.eval.verify.health import gold_reply
from offleash.eval.verify.verdicts import verdicts_of

MAX_PROBLEMS = 256
"""How many problems are tried; the verdicts on any others are counted when they fail."""
DRY_TEXTS = ("\\boxed{0}", "")

_PARTS = ("name", "version", "problems", "verify", "correct_answers")


def check_task(task: Task, problems: Sequence[Problem] | None = None) -> int:
    """Raise ConfigError naming the method and the problem; the number of problems tried, 0 for a task of Offleash.

    `problems`: those to be sampled, all unless given.
    """
    check_parts(task)
    if type(task).__module__.startswith("offleash.eval.tasks.") and not hasattr(task, "verified_by"):
        return 0
    tried = list(task.problems if problems is None else problems)[:MAX_PROBLEMS]
    for problem in tried:
        _check_answers(task, problem)
    left, verdicts = tried, _judged(task, [(problem, _dry_text(task, problem)) for problem in tried])
    for text in DRY_TEXTS[1:]:
        left = [problem for problem, verdict in zip(left, verdicts, strict=True) if verdict.failed]
        verdicts = _judged(task, [(problem, text) for problem in left])
    for problem, verdict in zip(left, verdicts, strict=True):
        if verdict.failed:
            reason = verdict.message or "status error, without a message"
            method = getattr(task, "verified_by", "verify")
            raise ConfigError(f"task {task.name!r}: {method} fails on problem {problem.id!r}: {reason}")
    return len(tried)


def check_parts(task: Task) -> None:
    """Raise ConfigError for a task without a name, a version, problems or a method; nothing of it is called."""
    if isinstance(task, type):
        raise ConfigError(f"{task.__name__} is a class: give a task made by it, {task.__name__}(...)")
    if missing := [part for part in _PARTS if not hasattr(task, part)]:
        raise ConfigError(f"{type(task).__name__} is not a task: it lacks {', '.join(missing)}")
    for part in ("name", "version"):
        if not isinstance(value := getattr(task, part), str) or not value:
            raise ConfigError(f"{type(task).__name__}: {part} must be text, got {value!r:.60}")
    problems: Any = task.problems
    if not isinstance(problems, Sequence) or not problems:
        what = "is empty" if isinstance(problems, Sequence) else f"is a {type(problems).__name__}"
        raise ConfigError(f"task {task.name!r}: problems {what}; it must be a list of Problem, at least one")
    rows: dict[str, int] = {}
    for row, problem in enumerate(problems):
        if not isinstance(problem, Problem):
            raise ConfigError(f"task {task.name!r}: problems[{row}] is a {type(problem).__name__}, not a Problem")
        for part in ("id", "gold"):
            if not isinstance(value := getattr(problem, part), str):
                raise ConfigError(f"task {task.name!r}: {part} of problems[{row}] must be text, got {value!r:.60}")
        if problem.id in rows:
            raise ConfigError(
                f"task {task.name!r}: problems[{rows[problem.id]}] and [{row}] have the id {problem.id!r}"
            )
        rows[problem.id] = row


def _check_answers(task: Task, problem: Problem) -> None:
    answers: Any = _called(task, "correct_answers", problem)
    listed = isinstance(answers, tuple | list) and all(isinstance(answer, str) for answer in answers)
    if answers is not None and not listed:
        raise ConfigError(
            f"task {task.name!r}: correct_answers returned {answers!r:.60} for problem {problem.id!r}; it must return "
            "a tuple of texts, or None"
        )


def _dry_text(task: Task, problem: Problem) -> str:
    reply: Any = _called(task, "gold_completion", problem) if hasattr(task, "gold_completion") else None
    if reply is not None and not isinstance(reply, str):
        raise ConfigError(
            f"task {task.name!r}: gold_completion returned {reply!r:.60} for problem {problem.id!r}; it must be text"
        )
    return DRY_TEXTS[0] if reply is None else gold_reply(task, problem) or ""


def _called(task: Task, method: str, problem: Problem) -> Any:
    try:
        return getattr(task, method)(problem)
    except OffleashError:
        raise
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(
            f"task {task.name!r}: {method} fails on problem {problem.id!r}: {type(error).__name__}: {first_line(error)}"
        ) from error


def _judged(task: Task, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
    judge = task.verify

    def verify(
        problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        verdicts = judge(problems, completions, truncated)
        _check_verdicts(task, problems, verdicts)
        return verdicts

    return verdicts_of(verify, [problem for problem, _ in pairs], [text for _, text in pairs], [False] * len(pairs))


def _check_verdicts(task: Task, problems: Sequence[Problem], verdicts: Any) -> None:
    where = f"task {task.name!r}: verify returned"
    if not isinstance(verdicts, list | tuple):
        raise ConfigError(f"{where} a {type(verdicts).__name__}; it must return a list, one Verdict per completion")
    if len(verdicts) != len(problems):
        raise ConfigError(
            f"{where} {len(verdicts)} verdicts for {len(problems)} completions; it must return one for each"
        )
    for problem, verdict in zip(problems, verdicts, strict=True):
        if not isinstance(verdict, Verdict):
            raise ConfigError(f"{where} a {type(verdict).__name__} for problem {problem.id!r}, not a Verdict")
        wanted: dict[str, tuple[bool, str]] = {
            "correct": (isinstance(verdict.correct, bool), "True or False"),
            "answer": (verdict.answer is None or isinstance(verdict.answer, str), "text or None"),
            "spelling": (verdict.spelling is None or isinstance(verdict.spelling, str), "text or None"),
            "status": (verdict.status in get_args(Status), " or ".join(get_args(Status))),
        }
        for part, (good, what) in wanted.items():
            if not good:
                value = getattr(verdict, part)
                got = f"{part}={value!r:.60} ({type(value).__name__})"
                raise ConfigError(f"{where} {got} for problem {problem.id!r}; it must be {what}")
