"""Correct completions of training problems: sampled from the base, or read from a file of a teacher's traces.

Base samples are a pool, drawn once and kept next to the monitor's. It depends on the base, the problems, k and the
sampling settings, not on the seed of the run: other seeds and variants reuse it, so what they have in common is not in
the spread of their seeds, unless the samples are `fresh`. Drawing does not touch the random numbers of training. A
resumed run draws only what is missing, from the frozen base, never from the policy.

A teacher's file is JSONL with problem_id and completion; its traces are verified when it is read.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offleash.callbacks import SupportCallback
from offleash.callbacks.contamination import check_contamination
from offleash.callbacks.policy.pool import PolicyPool, as_trained
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.trl_seam import text_tokenizer
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool
from offleash.eval.problem import Problem, Task
from offleash.eval.sampling import derive_seed
from offleash.eval.verify.verdicts import verdicts_of
from offleash.train.explorers.base import ExplorerTrainer


@dataclass(frozen=True, slots=True)
class Solved:
    """A problem with correct completions and their answers."""

    problem: Problem
    completions: tuple[str, ...]
    answers: tuple[str | None, ...]


def base_solutions(
    trainer: ExplorerTrainer, problems: Sequence[Problem], k: int, step: int, fresh: bool = False
) -> list[Solved]:
    """The problems that the base solves in k samples, on every rank. Collective; at `step` 0 the policy is the base.

    `fresh`: samples of the run's own seed.
    """
    folder, batch = Path(trainer.args.output_dir).parent / "base-pools", trainer.args.generation_batch_size
    callbacks = trainer.callback_handler.callbacks
    if (monitor := next((each for each in callbacks if isinstance(each, SupportCallback)), None)) is not None:
        check_contamination([problem.prompt for problem in problems], monitor.task)
        folder, batch = monitor.base_pools, monitor.batch_size * trainer.accelerator.num_processes
    task, sampling = _Part(trainer.verifier.task, problems), as_trained(trainer)
    filler = PolicyPool(trainer, task, k=k, sampling=sampling, score_k=0, batch=batch, kl_to_base=False)
    own = (trainer.args.seed,) if fresh else ()
    ranks, seed = Ranks(trainer.accelerator), derive_seed("training problems", "base", *own)
    spec = ranks.on_main(lambda: filler.base_spec(seed))
    pool = filler.fill_base(folder, spec, seed, step=step)
    return ranks.from_main(lambda: _correct_samples(pool, problems))


def teacher_solutions(task: Task, path: Path) -> list[Solved]:
    """The correct traces in a JSONL file; prints how many are wrong or belong to other problems."""
    problems = {problem.id: problem for problem in task.problems}
    rows = _read_traces(path)
    known = [(problems[name], text) for name, text in rows if name in problems]
    verdicts = verdicts_of(task.verify, [problem for problem, _ in known], [text for _, text in known])
    correct = [(p.id, text, v.answer) for (p, text), v in zip(known, verdicts, strict=True) if v.correct]
    used, failed = len(correct), sum(verdict.failed for verdict in verdicts)
    say(
        f"offleash: {path}: {used} of {len(rows)} traces are used, {len(known) - used - failed} are wrong, "
        f"the verifier failed on {failed}, {len(rows) - len(known)} belong to other problems",
    )
    return _solved(task.problems, correct)


def unit_weights(answers: Sequence[Any]) -> np.ndarray:
    """A weight for each sample such that every distinct answer has the same total weight."""
    counts = Counter(answers)
    weights = np.array([1 / counts[answer] for answer in answers])
    return weights / weights.sum()


def completion_ids(trainer: ExplorerTrainer, texts: Sequence[str]) -> list[list[int]]:
    """Tokenized texts with an end token.

    A pool keeps text: a completion that was sampled in another segmentation comes back in the tokenizer's own.
    """
    if not texts:
        return []
    tokenizer = text_tokenizer(trainer)
    end = tokenizer.eos_token_id if tokenizer.eos_token_id in trainer.eos_token_ids else trainer.eos_token_ids[0]
    return [[*ids, end] for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


class _Part:
    """A task restricted to some of its problems."""

    def __init__(self, task: Task, problems: Sequence[Problem]) -> None:
        if not problems:
            raise ConfigError("no training problems to sample from the base: `problems` must be at least 1")
        self.name, self.version, self.problems = task.name, task.version, problems
        self.verify, self.correct_answers = task.verify, task.correct_answers


def _correct_samples(pool: Pool | None, problems: Sequence[Problem]) -> list[Solved]:
    assert pool is not None
    table = pool.read(["problem_id", "correct", "completion", "answer"])
    rows = table.filter(table["correct"]).to_pylist()
    return _solved(problems, [(row["problem_id"], row["completion"], row["answer"]) for row in rows])


def _solved(problems: Sequence[Problem], samples: Iterable[tuple[str, str, str | None]]) -> list[Solved]:
    """From the problem id, completion and answer of correct samples."""
    found: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for problem_id, completion, answer in samples:
        found[problem_id].append((completion, answer))
    return [Solved(p, *zip(*found[p.id], strict=True)) for p in problems if p.id in found]


def _read_traces(path: Path) -> list[tuple[str, str]]:
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
