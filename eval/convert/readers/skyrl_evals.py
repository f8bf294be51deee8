"""SkyRL: `dumped_evals/global_step_{step}_evals/{data source}.jsonl`, one line per trajectory.

    {"input_prompt": ..., "output_response": ..., "score": ..., "stop_reason": ..., "env_extras": {...}, ...}

A problem is the hash of its prompt within its data source. A reward per token counts with its sum, which must be the
reward of the last token as well: SkyRL takes one for its mean and the other for its pass@n. Step-wise evaluation writes
a line per turn, without saying which is the last: it is refused.
"""

from collections.abc import Mapping
from typing import Any

from offleash.eval.convert.readers.record import Reading, Record, generation, gold_text, judged
from offleash.eval.convert.readers.values import BadRow, as_number

COLUMNS = frozenset({"input_prompt", "output_response", "score"})


def skyrl_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    verdict = judged({"score": _reward(row["score"])}, reading)
    stopped = row.get("stop_reason")
    truncated = None if stopped is None else stopped == "length"
    source, gold = str(row.get("data_source") or "skyrl"), _gold(row.get("env_extras"))
    return [generation(row, "input_prompt", "output_response", verdict, source=source, truncated=truncated, gold=gold)]


def is_next_turn(before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a line continues the conversation of the line before it."""
    said = (before.get("input_prompt"), before.get("output_response"))
    prompt = row.get("input_prompt")
    return (
        isinstance(prompt, str)
        and all(isinstance(text, str) and text for text in said)
        and prompt.startswith(f"{said[0]}{said[1]}")
    )


def _reward(score: Any) -> Any:
    if not isinstance(score, list):
        return score
    per_token = [value for value in (as_number(one, "score") for one in score) if value is not None]
    if len(per_token) < len(score) or not per_token or sum(per_token) != per_token[-1]:
        raise BadRow(f"score is a reward per token that is not all on the last one, got {score!r:.40}")
    return per_token[-1]


def _gold(extras: Any) -> str | None:
    for name in ("reward_spec", "reward_model"):
        spec = extras.get(name) if isinstance(extras, Mapping) else None
        if isinstance(spec, Mapping) and "ground_truth" in spec:
            return gold_text(spec["ground_truth"])
    return None
