"""Spellings are compared beside the answers that they spell."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool
from offleash.eval.report.page import html_report
from offleash.eval.report.record import json_report
from offleash.eval.report.text import text_report
from offleash.eval.report.words import summary
from offleash.eval.stats.noise import noise_test
from tests.eval.comparison.random_pools import cells, compared, make_problems, one


def spelled_pool(path: Path, spelled: Sequence[Sequence[str]], **changes: Any) -> Pool:
    """`spelled[p]` has the texts of problem p; the answer of a text is its letters in order, and "x" is wrong."""
    problems = make_problems(len(spelled))
    listed = [tuple(sorted({"".join(sorted(text)) for text in ("ab", "cd")})) for _ in problems]
    pool = make_pool(path, None, len(spelled[0]), problems, listed, **changes)
    for problem, texts in zip(problems, spelled, strict=True):
        pool.append(
            [
                Sample(problem.id, i, None, False, "no_answer")
                if text == "x"
                else Sample(problem.id, i, "".join(sorted(text)), True, "ok", spelling=text)
                for i, text in enumerate(texts)
            ]
        )
    return pool


def test_spellings_are_compared_beside_answers_and_say_how_many_only_changed_their_order(tmp_path: Path) -> None:
    base = [["ab"] * 3 + ["ba"] * 3 + ["cd", "x"], ["ab", "dc", *["x"] * 6], ["x"] * 8]
    policy = [["ab"] * 8, ["ba", *["x"] * 7], ["cd", *["x"] * 7]]
    for name, texts in (("base", base), ("policy", policy)):
        spelled_pool(tmp_path / name, texts)
    comparison = compared(tmp_path / "base", tmp_path / "policy")
    scope = one(comparison).overall
    assert cells(scope.units.any_hit) == (2, 1, 2, 1)
    assert scope.spellings is not None
    # Problem 0: ab kept, ba and cd lost. Problem 1: ab and dc lost, ba gained. Problem 2: cd gained.
    assert cells(scope.spellings.level.any_hit) == (1, 2, 4, 0)
    assert (scope.spellings.lost, scope.spellings.respelled) == (4, 2)
    assert math.isnan(scope.spellings.level.any_hit.shrunk.expected)
    units = np.array([[3, 3, 1, 1, 0, 1, 0], [8, 0, 0, 0, 1, 0, 1]])
    test = noise_test(*units, 8, 8, [0, 0, 0, 1, 1, 1, 2])
    assert scope.spellings.level.any_hit.shrunk.p == pytest.approx(test.shrunk.p)
    assert "4 lost in all samples, 2 write an answer that the policy reaches" in summary(one(comparison))[-1]
    written = json.loads(json_report(comparison))["policies"][0]["overall"]["spelling"]
    assert (written["lost"], written["respelled"], written["hits1"]["shrunk"]["value"]) == (4, 2, 4)
    assert "spellings, hits ≥ 1" in text_report(comparison)
    assert "spellings, hits" in html_report(comparison)


def test_a_domain_s_spellings_are_its_own_and_other_tasks_have_none(tmp_path: Path) -> None:
    texts = [["ab", "ba"], ["cd", "x"]]
    for name, of_side in (("base", texts), ("policy", [texts[0][:1] * 2, texts[1]])):
        spelled_pool(tmp_path / name / "one", of_side)
        make_pool(tmp_path / name / "two", [1], 2, task="two")
    result = one(compared(tmp_path / "base", tmp_path / "policy"))
    by_task = {scope.name: scope.spellings for scope in result.tasks}
    assert by_task["two"] is None
    assert by_task["sums"] is not None
    assert result.overall.spellings is not None
    for found in (by_task["sums"], result.overall.spellings):
        assert (found.level.total, found.lost, found.respelled) == (3, 1, 1)
