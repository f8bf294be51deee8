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
    given_answer,
    given_prompt,
    gold_text,
    judged,
    numeric,
    prompt_id,
    question_of,
)
from offleash.eval.convert.readers.values import BadRow, as_completion, as_integer

COLUMNS = frozenset({"input", "output", "score"})
_DESCRIBED = frozenset({"input", "output", "gts", "step"})


def verl_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    prompt, completion = given_prompt(row["input"], "input"), as_completion(row["output"])
    if completion is None:
        raise BadRow("output is missing")
    default = "acc" if "acc" in row else "score"
    correct, judged_by = judged({default: row[default], **numeric(row, _DESCRIBED)}, reading, default)
    others = {name: value for name, value in row.items() if name not in COLUMNS | _DESCRIBED}
    answer, answered = given_answer(others, reading)
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
            gold=gold_text(row.get("gts")),
            step=as_integer(row.get("step"), "step"),
        )
    ]
