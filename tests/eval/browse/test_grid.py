"""The grid shows what the pools hold: hits, samples, and marks that agree with a reading of each cell."""

import numpy as np
import pytest

from offleash.eval.browse.grid import MARKS, column, grid, marks_of
from offleash.eval.errors import ConfigError
from offleash.eval.pool.testing import make_pool, make_problems
from offleash.eval.problem import Problem


def columns(tmp_path, level, **hits):
    problems = make_problems(4)
    ids = [problem.id for problem in problems]
    pools = {name: make_pool(tmp_path / name, hits=of, k=32, problems=problems) for name, of in hits.items()}
    return problems, {name: column(pool.hits(), level, ids) for name, pool in pools.items()}


def test_rows_are_the_problems_and_cells_their_hits(tmp_path):
    problems, found = columns(tmp_path, "problem", base=[30, 3, 0, 0], one=[28, 0, 0, 2], two=[0, 5, 0, 31])
    made = grid("problem", found["base"], {10: found["one"], 20: found["two"]}, problems)
    assert made["rows"] == [[0, None], [1, None], [2, None], [3, None]]
    assert made["base"] == {"hits": [30, 3, 0, 0], "n": [32] * 4}
    assert made["steps"]["10"]["hits"] == [28, 0, 0, 2]
    words = {step: [MARKS[mark] for mark in made["steps"][step]["marks"]] for step in ("10", "20")}
    assert words["10"] == ["kept", "perhaps lost", "out", "perhaps gained"]
    assert words["20"] == ["lost", "kept", "out", "gained"]


def test_answers_that_nobody_gave_have_no_row(tmp_path):
    problems = make_problems(2)
    answers = [("a", "b", "c"), None]
    pool = make_pool(tmp_path / "base", hits=[4, 4], k=8, problems=problems, answers=answers)
    found = column(pool.hits(), "answer", [problem.id for problem in problems])
    assert grid("answer", found, {0: found}, problems)["rows"] == [[0, "a"], [1, None]]


def test_a_problem_that_one_side_never_drew_is_neither_lost_nor_gained():
    marks = marks_of(np.array([9, 0]), np.array([0, 9]), np.array([32, 0]), np.array([0, 32]))
    assert [MARKS[mark] for mark in marks] == ["out", "out"]


def test_only_the_problems_asked_for_are_shown(tmp_path):
    """A base pool may hold more problems than a run."""
    pool = make_pool(tmp_path / "base", hits=[4, 2, 1], k=8)
    found = column(pool.hits(), "problem", ["p2", "p0"])
    assert found.n == {"p0": 8, "p2": 8}
    made = grid("problem", found, {}, [Problem("p2", "?", "4"), Problem("p0", "?", "0")])
    assert made["base"]["hits"] == [1, 4]


def test_a_level_that_does_not_exist_is_refused(tmp_path):
    problems, found = columns(tmp_path, "problem", base=[1, 1, 1, 1])
    with pytest.raises(ConfigError, match="spelling"):
        grid("letters", found["base"], {}, problems)
