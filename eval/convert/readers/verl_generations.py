"""verl: `validation_data_dir/{step}.jsonl` and `rollout_data_dir/{step}.jsonl`, one line per generation.

    {"input": ..., "output": ..., "gts": ..., "score": ..., "step": ..., and what the reward function returned besides}

verl has no id of a problem: it is the hash of the input. Of the scores, `acc` is the verdict where there is one, as in
verl's own metrics, otherwise `score`.
"""

from collections.abc import Mapping
from typing import Any

from offleash.eval.convert.readers.record import (
    Reading,
    Record,
    generation,
    given_answer,
    gold_text,
    judged,
    numeric,
)
from offleash.eval.convert.readers.values import as_integer

COLUMNS = frozenset({"input", "output", "score"})
_DESCRIBED = frozenset({"input", "output", "gts", "step"})


def verl_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    default = "acc" if "acc" in row else "score"
    verdict = judged({default: row[default], **numeric(row, _DESCRIBED)}, reading, default)
    others = {name: value for name, value in row.items() if name not in COLUMNS | _DESCRIBED}
    answer, answered = given_answer(others, reading)
    gold, step = gold_text(row.get("gts")), as_integer(row.get("step"), "step")
    return [generation(row, "input", "output", verdict, answer=answer, answered=answered, gold=gold, step=step)]
