"""A cell of the grid: one problem at one step, what the base wrote and what the policy wrote, grouped by answer."""

from collections.abc import Sequence
from typing import Any

from offleash.eval.pool.pool import Pool
from offleash.eval.problem import Problem, chat_text, cut_text

TEXT_LIMIT = 8000
"""Characters of a completion; the middle of a longer one is left out."""
PAGE_LIMIT = 400_000
"""Characters of completions on one side; of the rest the counts are given."""

COLUMNS = ("index", "answer", "spelling", "correct", "status", "extracted_by", "tokens", "completion")

Row = dict[str, Any]


def cell(problem: Problem, base: Pool, policy: Pool, k: int) -> dict[str, Any]:
    """As JSON: the problem, and of each side its answers with their completions, the most frequent first.

    Of the base, the first k samples.
    """
    sides = (base, k), (policy, policy.spec.k)
    return cell_of(problem, *(pool.read(COLUMNS, limit, [problem.id]).to_pylist() for pool, limit in sides))


def rows_by_problem(pool: Pool, k: int | None = None, ids: Sequence[str] | None = None) -> dict[str, list[Row]]:
    """The first k samples of each problem, or of these problems, in one pass."""
    rows: dict[str, list[Row]] = {}
    for row in pool.read(("problem_id", *COLUMNS), k, ids).to_pylist():
        rows.setdefault(row["problem_id"], []).append(row)
    return rows


def cell_of(
    problem: Problem, base: Sequence[Row], policy: Sequence[Row], side_limit: int = PAGE_LIMIT
) -> dict[str, Any]:
    """The same from samples that were read, rows with COLUMNS; so many characters of completions on each side."""
    base_answers, policy_answers = ({row["answer"] for row in rows} for rows in (base, policy))
    return {
        "id": problem.id,
        "prompt": cut_text(chat_text(problem.prompt, between="\n\n", between_parts="\n", roles=True), TEXT_LIMIT),
        "gold": cut_text(problem.gold, TEXT_LIMIT),
        "base": _side(base, policy_answers, side_limit),
        "policy": _side(policy, base_answers, side_limit),
    }


def _side(rows: Sequence[Row], elsewhere: set[str | None], room: int) -> dict[str, Any]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["correct"], row["answer"], row["status"]), []).append(row)
    made = []
    for (correct, answer, status), members in sorted(groups.items(), key=lambda item: (not item[0][0], -len(item[1]))):
        texts = []
        for row in members:
            text = None if row["completion"] is None else cut_text(row["completion"], TEXT_LIMIT)
            room -= len(text or "")
            if room < 0:
                break
            texts.append({"index": row["index"], "tokens": row["tokens"], "spelling": row["spelling"], "text": text})
        made.append(
            {
                "answer": None if answer is None else cut_text(answer, TEXT_LIMIT),
                "correct": correct,
                "status": status,
                "extracted_by": sorted({row["extracted_by"] for row in members if row["extracted_by"]}),
                "count": len(members),
                "only_here": answer is not None and answer not in elsewhere,
                "samples": texts,
            }
        )
    return {"n": len(rows), "correct": sum(row["correct"] for row in rows), "groups": made}
