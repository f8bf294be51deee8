"""lm-evaluation-harness: `samples_*.jsonl` of --log_samples, one line per document and filter, with all its repeats."""

from collections.abc import Mapping
from typing import Any

from offleash.eval.convert.readers.record import Prompt, Reading, Record, verdicts_of_many
from offleash.eval.convert.readers.values import BadRow, as_list, as_prompt

COLUMNS = frozenset({"doc_id", "resps", "filtered_resps"})
_DESCRIBED = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash", "schema",
}  # fmt: skip


def lm_eval_records(row: Mapping[str, Any], reading: Reading) -> list[Record]:
    chosen = str(row.get("filter") or "")
    if reading.filter and chosen != reading.filter:
        return []
    replies = [one for group in as_list(row["resps"]) for one in as_list(group)]
    if not replies or not all(isinstance(one, str) for one in replies):
        raise BadRow("resps are not completions (a likelihood task?)")
    answers = _flat(row["filtered_resps"])
    scores = {name: row[name] for name in row.get("metrics") or sorted(set(row) - _DESCRIBED) if name in row}
    correct, judged_by = verdicts_of_many(scores, len(replies), reading)
    doc = row.get("doc")
    question = next((doc[key] for key in ("question", "problem") if key in doc), "") if isinstance(doc, Mapping) else ""
    return [
        Record(
            str(row["doc_id"]),
            completion=one,
            answer=answers[i] if len(answers) == len(replies) else None,
            answered=len(answers) == len(replies),
            correct=correct[i],
            judged_by=judged_by,
            prompt=_first_argument(row.get("arguments")),
            question=str(question),
            gold=None if row.get("target") is None else str(row["target"]),
            filter=chosen,
        )
        for i, one in enumerate(replies)
    ]


def _flat(filtered: Any) -> list[str | None]:
    """lm-eval's filtered answers, one per response; its filters write "[invalid]" where they find none."""
    items = [one for group in as_list(filtered) for one in (group if isinstance(group, list) else [group])]
    return [None if one is None or one == "[invalid]" else str(one) for one in items]


def _first_argument(arguments: Any) -> Prompt | None:
    """The prompt. Arguments are {"gen_args_0": {"arg_0": prompt, ...}}, or [[prompt, settings]] in older files."""
    if isinstance(arguments, Mapping):
        group = next(iter(arguments.values()), None)
        found = group.get("arg_0") if isinstance(group, Mapping) else None
    else:
        found = arguments[0][0] if isinstance(arguments, list) and arguments and arguments[0] else None
    found = found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str) else found
    return as_prompt(found)
