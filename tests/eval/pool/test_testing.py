"""`make_pool` makes the pool it is asked for."""

from pathlib import Path

import pytest

from offleash.eval.errors import PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool


def test_hits_answers_and_settings_are_those_asked_for(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "a", [3, 0, 4], 4, answers=[("x", "y"), None, None], top_p=0.9)
    hits = Pool.open(tmp_path / "a").hits()
    assert hits.correct_p.tolist() == [3, 0, 4]
    assert dict(zip(hits.unit_answer[:2], hits.unit_hits, strict=False)) == {"x": 3, "y": 0}
    assert (pool.is_complete, pool.spec.top_p) == (True, 0.9)
    assert make_pool(tmp_path / "b", [3, 0, 4], 4).spec.weights != pool.spec.weights


def test_without_hits_it_is_empty_and_a_second_one_is_refused(tmp_path: Path) -> None:
    assert make_pool(tmp_path / "a", k=2).read().num_rows == 0
    with pytest.raises(PoolError, match="already a pool"):
        make_pool(tmp_path / "a")
