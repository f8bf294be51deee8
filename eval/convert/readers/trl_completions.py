"""TRL: `completions/completions_{step:05d}.parquet`, which `log_completions=True` writes at every logging step.

Columns: step, prompt, completion, one per reward function, those of `log_extra`, advantage. A problem is the hash of
its prompt. The file holds the last generation batch, so logging more often than generating writes the same rows again,
under a later step. Where a reward function returned None, its reward is missing, and so is the verdict.
"""

from collections.abc import Mapping
from typing import Any

from offleash.eval.convert.readers.record import Reading, Record, generation, given_answer, judged, numeric
from offleash.eval.convert.readers.values import as_integer

COLUMNS = frozenset({"step", "prompt", "completion", "advantage"})


def trl_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    verdict = judged(numeric(row, COLUMNS), reading)
    answer, answered = given_answer({name: row[name] for name in row if name not in COLUMNS}, reading)
    step = as_integer(row["step"], "step")
    return [generation(row, "prompt", "completion", verdict, answer=answer, answered=answered, step=step)]
