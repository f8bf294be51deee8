"""The grid shows what the pools hold: hits, samples, and marks that agree with a reading of each cell."""

import numpy as np
import pytest

from offleash.eval.browse.grid import LEVELS, MARKS, columns, grid, marks_of
from offleash.eval.errors import ConfigError
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool, make_problems
from offleash.eval.problem import Problem


def columns_of(tmp_path, level, **hits):
    problems = make_problems(4)
    pools = {name: make_pool(tmp_path / name, hits=of, k=32, problems=problems) for name, of in hits.items()}
    return problems, {name: columns(pool)[level] for name, pool in pools.items()}


def test_rows_are_the_problems_and_cells_their_hits(tmp_path):
    problems, found = columns_of(tmp_path, "problem", base=[30, 3, 0, 0], one=[28, 0, 0, 2], two=[0, 5, 0, 31])
    made = grid("problem", found["base"], {10: found["one"], 20: found["two"]}, problems)
    assert made["rows"] == [[0, None], [1, None], [2, None], [3, None]]
    assert made["base"] == {"hits": [30, 3, 0, 0], "n": 32}
    assert made["steps"]["10"]["hits"] == [28, 0, 0, 2]
    words = {step: [MARKS[int(mark)] for mark in made["steps"][step]["marks"]] for step in ("10", "20")}
    assert words["10"] == ["kept", "perhaps lost", "out", "perhaps gained"]
    assert words["20"] == ["lost", "kept", "out", "gained"]


def test_answers_that_nobody_gave_have_no_row(tmp_path):
    problems = make_problems(2)
    answers = [("a", "b", "c"), None]
    pool = make_pool(tmp_path / "base", hits=[4, 4], k=8, problems=problems, answers=answers)
    found = columns(pool)["answer"]
    assert grid("answer", found, {0: found}, problems)["rows"] == [[0, "a"], [1, None]]


def test_a_problem_that_one_side_never_drew_is_neither_lost_nor_gained():
    marks = marks_of(np.array([9, 0]), np.array([0, 9]), np.array([32, 0]), np.array([0, 32]))
    assert [MARKS[mark] for mark in marks] == ["out", "out"]


def test_only_the_problems_asked_for_are_shown(tmp_path):
    """A base pool may hold more problems than a run."""
    pool = make_pool(tmp_path / "base", hits=[4, 2, 1], k=8)
    shown = [Problem("p2", "?", "4"), Problem("p0", "?", "0")]
    assert grid("problem", columns(pool)["problem"], {}, shown)["base"]["hits"] == [1, 4]
    assert [row for row, _ in grid("answer", columns(pool)["answer"], {}, shown)["rows"]] == [0, 1]


def test_all_levels_of_one_pass_are_the_pool_s_own_counts(tmp_path):
    """Listed and unlisted answers, spellings, samples without either, several parts."""
    problems = make_problems(3)
    pool = make_pool(tmp_path / "pool", problems=problems, k=6, answers=[("a", "b"), None, ("c",)])
    said = [("a", True, " a"), ("b", True, "b"), ("a", True, "a "), ("x", False, "x"), (None, False, None)]
    pool.append([Sample("p0", i, a, right, "ok", spelling=how) for i, (a, right, how) in enumerate(said)])
    pool.append([Sample("p1", i, str(i), i < 3, "ok", spelling=f"{i}!") for i in range(4)])
    pool.append([Sample("p2", 0, "c", True, "ok"), Sample("p0", 5, "a", True, "ok", spelling="a ")])
    for k in (None, 3):
        found = columns(pool, k)
        answers, spellings = pool.hits(k), pool.hits(k, "spelling")
        for level, hits in (("answer", answers), ("spelling", spellings)):
            names = [pool.problem_ids[p] for p in hits.unit_problem]
            units = zip(names, hits.unit_answer, hits.unit_hits.tolist(), strict=True)
            assert found[level].hits == {(name, unit): count for name, unit, count in units if count}
        solved = zip(pool.problem_ids, answers.correct_p.tolist(), strict=True)
        assert found["problem"].hits == {(name, None): count for name, count in solved if count}
        assert all(list(found[level].n.values()) == answers.n_p.tolist() for level in LEVELS)


def test_an_empty_pool_has_columns(tmp_path):
    pool = make_pool(tmp_path / "pool", k=4)
    assert [(found.hits, found.n) for found in columns(pool).values()] == [({}, {"p0": 0})] * 3


def test_unequal_numbers_of_samples_are_given_by_problem(tmp_path):
    problems = make_problems(2)
    pool = make_pool(tmp_path / "pool", problems=problems, k=4)
    pool.append([Sample("p0", i, "0", True, "ok") for i in range(4)] + [Sample("p1", 0, "2", True, "ok")])
    assert grid("problem", columns(pool)["problem"], {}, problems)["base"] == {"hits": [4, 1], "n": [4, 1]}


def test_a_level_that_does_not_exist_is_refused(tmp_path):
    problems, found = columns_of(tmp_path, "problem", base=[1, 1, 1, 1])
    with pytest.raises(ConfigError, match="spelling"):
        grid("letters", found["base"], {}, problems)
