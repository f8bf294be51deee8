"""The true probability of every correct answer under a model, where the correct answers can be enumerated.

An answer class is a set of completions (an expression may be written in several orders). Its probability is the sum
over all its texts, each followed by the end token, by teacher forcing. Completions longer than `max_new_tokens`
are truncated when sampled and therefore have probability zero.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from offleash.eval.problem import Problem
from offleash.eval.scoring.teacher_forcing import score


class Enumerable(Protocol):
    """A task whose correct answers can be listed, and for each every text that the verifier counts as that answer."""

    def correct_answers(self, problem: Problem) -> tuple[str, ...]: ...

    def spellings(self, problem: Problem, answer: str) -> tuple[str, ...]: ...


class ExactUnits(NamedTuple):
    """Units in the order of a pool's `Hits`: by problem, then in the order in which the task lists its answers."""

    unit_problem: np.ndarray
    unit_answer: tuple[str, ...]
    probability_u: np.ndarray

    def pass_at_1(self) -> float:
        """Mean over problems of the probability of any correct answer."""
        return float(np.bincount(self.unit_problem, self.probability_u).mean())


def exact_units(
    model: Any,
    tokenizer: Any,
    task: Enumerable,
    problems: Sequence[Problem],
    *,
    temperature: float = 1.0,
    max_new_tokens: int | None = None,
) -> ExactUnits:
    """Teacher-force every text of every correct answer of plain-text problems."""
    units = [(p, answer) for p, problem in enumerate(problems) for answer in task.correct_answers(problem)]
    prompt_ids: list[list[int]] = tokenizer([str(problem.prompt) for problem in problems])["input_ids"]
    rows: list[tuple[int, list[int]]] = []
    for u, (p, answer) in enumerate(units):
        for ids in tokenizer(list(task.spellings(problems[p], answer)), add_special_tokens=False)["input_ids"]:
            completion = [*ids, tokenizer.eos_token_id]
            if max_new_tokens is None or len(completion) <= max_new_tokens:
                rows.append((u, completion))
    scores = score(model, [prompt_ids[units[u][0]] for u, _ in rows], [c for _, c in rows], temperature=temperature)
    probability_u = np.bincount([u for u, _ in rows], np.exp(scores.logprob_s), minlength=len(units))
    return ExactUnits(
        np.array([p for p, _ in units], dtype=np.int64), tuple(answer for _, answer in units), probability_u
    )
