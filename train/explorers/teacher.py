"""A file of a teacher's traces on training problems: JSONL with problem_id and completion, verified when it is read."""

import json
from pathlib import Path

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base_samples import Solved, solved_by
from offleash.train.rewards import VerifierReward


def teacher_solutions(verifier: VerifierReward, path: Path) -> list[Solved]:
    """The right traces of training problems; prints how many are wrong or of other problems."""
    rows = _read(path)
    known = [(verifier.problems[name], text) for name, text in rows if name in verifier.problems]
    verdicts = verifier.task.verify([problem for problem, _ in known], [text for _, text in known])
    found: dict[str, list[tuple[str, str | None]]] = {}
    for (problem, text), verdict in zip(known, verdicts, strict=True):
        if verdict.correct:
            found.setdefault(problem.id, []).append((text, verdict.answer))
    right = sum(map(len, found.values()))
    failed = sum(verdict.failed for verdict in verdicts)
    print(
        f"offleash: {path}: {right} of {len(rows)} traces are used, {len(known) - right - failed} are wrong, "
        f"on {failed} the verifier failed, {len(rows) - len(known)} are of other problems",
        flush=True,
    )
    return [solved_by(verifier.problems[name], traces) for name, traces in found.items()]


def _read(path: Path) -> list[tuple[str, str]]:
    """(problem id, completion) of each line."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [(str(row["problem_id"]), str(row["completion"])) for row in rows]
    except OSError as error:
        raise ConfigError(f"source of seeding must be base or a JSONL file: {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a file of traces ({error!r}): each line must be JSON with problem_id and completion"
        ) from error
