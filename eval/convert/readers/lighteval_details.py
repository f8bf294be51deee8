"""lighteval: `details_*.parquet`, one row per document with all its samples, as written since 0.10 and before."""

from collections.abc import Mapping
from typing import Any

from offleash.eval.convert.readers.record import Reading, Record, verdicts_of_many
from offleash.eval.convert.readers.values import BadRow, as_list, as_mapping
from offleash.eval.tasks.loading import content_id

COLUMNS = frozenset({"doc", "model_response", "metric"})
FORMER_COLUMNS = frozenset({"full_prompt", "predictions", "metrics"})


def lighteval_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    doc, response = as_mapping(row["doc"], "doc"), as_mapping(row["model_response"], "model_response")
    replies = [one for one in as_list(response.get("text")) if isinstance(one, str)]
    if not replies:
        raise BadRow("model_response has no text (a likelihood task?)")
    query, choices = str(doc.get("query") or ""), doc.get("choices") or []
    if not isinstance(choices, list):
        raise BadRow(f"choices must be a list, got {choices!r:.40}")
    place = next(iter(as_list(doc.get("gold_index"))), None)
    gold = str(choices[place]).strip() if isinstance(place, int) and 0 <= place < len(choices) else None
    tokens = [len(one) for one in response.get("output_tokens") or [] if isinstance(one, list)]
    correct, judged_by = verdicts_of_many(as_mapping(row["metric"], "metric"), len(replies), reading)
    problem_id = str(doc["id"]) if doc.get("id") not in (None, "") else content_id("lighteval", query)
    return [
        Record(
            problem_id,
            completion=one,
            correct=correct[i],
            judged_by=judged_by,
            tokens=tokens[i] if len(tokens) == len(replies) else None,
            prompt=query,
            question=query,
            gold=gold,
        )
        for i, one in enumerate(replies)
    ]


def former_lighteval_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    replies = [str(one) for one in as_list(row["predictions"])]
    correct, judged_by = verdicts_of_many(as_mapping(row["metrics"], "metrics"), len(replies), reading)
    golds, query = as_list(row.get("gold")), str(row.get("example") or row["full_prompt"])
    gold = str(golds[0]).strip() if golds and golds[0] is not None else None
    problem_id = content_id("lighteval", query)
    prompt = str(row["full_prompt"])
    return [
        Record(
            problem_id,
            completion=one,
            correct=correct[i],
            judged_by=judged_by,
            prompt=prompt,
            question=query,
            gold=gold,
        )
        for i, one in enumerate(replies)
    ]
