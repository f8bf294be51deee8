"""TRL: `completions/completions_{step:05d}.parquet`, which `log_completions=True` writes at every logging step.

Columns: step, prompt, completion, one per reward function, those of `log_extra`, advantage. A problem is the hash of
its prompt. The file holds the last generation batch, so logging more often than generating writes the same rows again,
under a later step. Where a reward function returned None, its reward is missing, and so is the verdict.
"""

from collections.abc import Mapping
from typing import Any

from offleash.eval.convert.readers.record import (
    Reading,
    Record,
    given_answer,
    given_prompt,
    judged,
    numeric,
    prompt_id,
    question_of,
)
from offleash.eval.convert.readers.values import BadRow, as_completion, as_integer

COLUMNS = frozenset({"step", "prompt", "completion", "advantage"})


def trl_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    prompt, completion = given_prompt(row["prompt"], "prompt"), as_completion(row["completion"])
    if completion is None:
        raise BadRow("completion is missing")
    rewards = numeric(row, COLUMNS)
    correct, judged_by = judged(rewards, reading)
    answer, answered = given_answer({name: row[name] for name in row if name not in COLUMNS}, reading)
    return [
        Record(
            prompt_id(prompt),
            completion=completion,
            answer=answer,
            answered=answered,
            correct=correct,
            judged_by=judged_by,
            prompt=prompt,
            question=question_of(prompt),
            step=as_integer(row["step"], "step"),
        )
    ]
