"""The true probability of every correct answer under a model, where the correct answers can be enumerated.

An answer class is a set of completions (an expression may be written in several orders). Its probability is the sum
over all its texts, each followed by an end token, by teacher forcing. Completions longer than `max_new_tokens` are
truncated when sampled and therefore have probability zero. A text is tokenized as the tokenizer does it: where a model
could write one text as several sequences of tokens, the others are missing from the sum.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self
from zipfile import BadZipFile

import numpy as np

from offleash.eval.errors import ConfigError, PoolError, first_line
from offleash.eval.files import write_atomic
from offleash.eval.problem import Problem
from offleash.eval.scoring.trees import completion_logprobs


class Enumerable(Protocol):
    """A task whose correct answers can be listed, and for each every text that the verifier counts as that answer."""

    def correct_answers(self, problem: Problem) -> tuple[str, ...]: ...

    def spellings(self, problem: Problem, answer: str) -> tuple[str, ...]: ...


def check_enumerable(task: Any) -> Any:
    """The task, if all texts of all its correct answers can be listed; raises ConfigError if not."""
    if not callable(getattr(task, "spellings", None)) or not callable(getattr(task, "correct_answers", None)):
        raise ConfigError(
            f"exact probabilities need a task that lists every text of every correct answer; {task.name} does not: "
            "use countdown, colouring or change, or leave exact out"
        )
    if not getattr(task, "strict", True):
        raise ConfigError(
            f"exact probabilities need {task.name} with strict: true, so that its texts can all be listed"
        )
    return task


class ExactUnits(NamedTuple):
    """Units in the order of a pool's `Hits`: by problem, then in the order in which the task lists its answers.

    Texts are in the order of their units, tokens (the end included) in the order of their texts.
    """

    unit_problem: np.ndarray
    unit_answer: tuple[str, ...]
    probability_u: np.ndarray
    text_unit: np.ndarray
    texts: tuple[str, ...]
    """Those of at most `max_new_tokens` tokens."""
    logprob_t: np.ndarray
    tokens_t: np.ndarray
    token_id_i: np.ndarray
    """Of the end, the first end token: texts may end with any."""
    token_logprob_i: np.ndarray
    problem_ids: tuple[str, ...]

    def pass_at_1(self) -> float:
        """Mean over problems of the probability of any correct answer."""
        return float(self.problem_probabilities().mean())

    def problem_probabilities(self) -> np.ndarray:
        """The probability of any correct answer, per problem."""
        return np.bincount(self.unit_problem, self.probability_u, minlength=len(self.problem_ids))

    def save(self, path: Path) -> None:
        """Write an `.npz` file, complete or not at all; raises PoolError if it cannot be written."""
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in self._asdict().items()}
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        write_atomic(path, file.getbuffer())

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save` wrote; raises PoolError for a file that is not there or holds something else."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in cls._fields}
        except (OSError, ValueError, LookupError, EOFError, BadZipFile) as error:
            raise PoolError(f"cannot read exact probabilities from {path}: {first_line(error, 80)}") from error
        names = {name: tuple(arrays[name].tolist()) for name in ("problem_ids", "unit_answer", "texts")}
        return cls(**{**arrays, **names})


def exact_units(
    model: Any,
    tokenizer: Any,
    task: Enumerable,
    problems: Sequence[Problem],
    *,
    temperature: float = 1.0,
    max_new_tokens: int | None = None,
    prompt_ids: Sequence[Sequence[int]] | None = None,
    end_token_ids: Sequence[int] | None = None,
) -> ExactUnits:
    """Teacher-force every text of every correct answer.

    `prompt_ids`: the tokenized prompts; None for problems in plain text. `end_token_ids`: what ends a completion; None
    means the tokenizer's end token.
    """
    ends = [tokenizer.eos_token_id] if end_token_ids is None else list(end_token_ids)
    units = [(p, answer) for p, problem in enumerate(problems) for answer in task.correct_answers(problem)]
    prompts = _plain_prompts(tokenizer, problems) if prompt_ids is None else prompt_ids
    spelled = [(u, text) for u, (p, answer) in enumerate(units) for text in task.spellings(problems[p], answer)]
    ids_s = tokenizer([text for _, text in spelled], add_special_tokens=False)["input_ids"] if spelled else []
    rows = [
        (u, text, ids)
        for (u, text), ids in zip(spelled, ids_s, strict=True)
        if max_new_tokens is None or len(ids) < max_new_tokens
    ]
    _check_distinct([(units[u][0], text, tuple(ids)) for u, text, ids in rows])
    logprobs = completion_logprobs(
        model, prompts, [(units[u][0], ids) for u, _, ids in rows], end_token_ids=ends, temperature=temperature
    )
    text_unit, logprob_t = np.array([u for u, _, _ in rows], dtype=np.int64), np.array([one.sum() for one in logprobs])
    return ExactUnits(
        problem_ids=tuple(problem.id for problem in problems),
        unit_problem=np.array([p for p, _ in units], dtype=np.int64),
        unit_answer=tuple(answer for _, answer in units),
        probability_u=np.bincount(text_unit, np.exp(logprob_t), minlength=len(units)),
        text_unit=text_unit,
        texts=tuple(text for _, text, _ in rows),
        logprob_t=logprob_t,
        tokens_t=np.array([len(one) for one in logprobs], dtype=np.int64),
        token_id_i=np.array([token for _, _, ids in rows for token in (*ids, ends[0])], dtype=np.int64),
        token_logprob_i=np.concatenate([np.zeros(0), *logprobs]),
    )


def _plain_prompts(tokenizer: Any, problems: Sequence[Problem]) -> list[list[int]]:
    if chats := [problem.id for problem in problems if not isinstance(problem.prompt, str)]:
        raise ConfigError(f"the prompt of {chats[0]} is a chat: give prompt_ids, tokenized with the model's template")
    ids: list[list[int]] = tokenizer([problem.prompt for problem in problems])["input_ids"]
    return ids


def _check_distinct(rows: Sequence[tuple[int, str, tuple[int, ...]]]) -> None:
    """Raises ConfigError if two texts of a problem are the same tokens: their probability would count twice."""
    texts: dict[tuple[int, tuple[int, ...]], str] = {}
    for problem, text, ids in rows:
        if (problem, ids) in texts:
            raise ConfigError(
                f"{texts[problem, ids][:40]!r} and {text[:40]!r}, two texts of one problem, are the same tokens: "
                "list each text once, or use a tokenizer that tells them apart"
            )
        texts[problem, ids] = text
