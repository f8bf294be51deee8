"""Labelled answer pairs from other projects' tests: no false accept, and fewer false rejects than plain math-verify."""

import json
import runpy
from pathlib import Path

import pytest

BENCH = runpy.run_path(str(Path(__file__).parents[4] / "bench" / "agreement.py"))
PAIRS = BENCH["load"]()
REJECTED = {("(3, 3), (1, 1)", "(3, 3) \\text{ for part (a) and } (1, 1)")}  # prose between two answers


def test_no_pair_is_accepted_that_differs_and_no_more_are_rejected_than_now() -> None:
    accepted, rejected = BENCH["errors"](PAIRS, BENCH["ours"](PAIRS))
    assert accepted == []
    assert {(pair["gold"], pair["answer"]) for pair in rejected} <= REJECTED


def test_a_disputed_label_says_why_and_few_are() -> None:
    rows = [json.loads(line) for line in BENCH["PAIRS"].read_text().splitlines()]
    assert all(len(row["disputed"]) > 20 for row in rows if "disputed" in row)
    assert len(rows) - len(PAIRS) <= 0.02 * len(rows)
    keys = [(row["project"], row["gold"], row["answer"]) for row in rows]
    assert len(set(keys)) == len(keys) >= 600


@pytest.mark.slow
def test_plain_math_verify_is_wrong_more_often() -> None:
    accepted, rejected = BENCH["errors"](PAIRS, BENCH["plain"](PAIRS))
    assert len(accepted) > 0
    assert len(rejected) > len(REJECTED)
