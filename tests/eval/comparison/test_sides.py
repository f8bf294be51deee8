"""Folders of pools are paired by task, and runs are put in the order of their steps."""

from pathlib import Path

import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.testing import make_pool
from tests.eval.comparison.random_pools import FAST, compared, make_problems, one


def test_folders_are_paired_by_task_and_what_is_left_over_is_said(tmp_path: Path) -> None:
    problems = make_problems(2)
    for name in ("x", "y", "only-base"):
        make_pool(tmp_path / "base" / name, [1, 0], 2, problems, task=name)
    for name in ("y", "x", "only-policy"):
        make_pool(tmp_path / "rl" / name, [1, 1], 2, problems, task=name)
    comparison = compared(tmp_path / "base", tmp_path / "rl")
    result = one(comparison)
    assert [scope.name for scope in result.tasks] == ["x", "y"]
    assert result.overall.problems == 4
    assert "task 'only-base' is only in base: left out" in comparison.warnings
    assert "task 'only-policy' is only in rl: left out" in comparison.warnings
    base, rl = ([tmp_path / side / task for task in ("x", "y")] for side in ("base", "rl"))
    named = compare(base, [rl], **FAST)
    assert repr(one(named).overall.units) == repr(result.overall.units)
    assert named.base.label == "x + y"


def test_a_run_of_pools_is_a_series_in_the_order_of_its_steps(tmp_path: Path) -> None:
    problems = make_problems(2)
    make_pool(tmp_path / "base", [1, 0], 2, problems)
    for step in (1000, 50, 200):
        make_pool(tmp_path / "run" / "pools" / f"step-{step}", [1, 1], 2, problems)
    comparison = compared(tmp_path / "base", tmp_path / "run")
    assert [result.side.step for result in comparison.policies] == [50, 200, 1000]
    again = compared(tmp_path / "base", tmp_path / "run" / "pools" / "step-50")
    assert repr(one(again).overall) == repr(comparison.policies[0].overall)  # its neighbours do not matter
    with pytest.raises(PoolError, match=r"sums.*step-1000, step-200, step-50"):
        compared(tmp_path / "run", tmp_path / "base")


def test_labels_that_are_the_same_get_more_of_their_path(tmp_path: Path) -> None:
    problems = make_problems(1)
    for name in ("base", "a/pools/step-5", "b/pools/step-5"):
        make_pool(tmp_path / name, [1], 2, problems)
    comparison = compared(tmp_path / "base", tmp_path / "a/pools/step-5", tmp_path / "b/pools/step-5")
    assert [result.side.label for result in comparison.policies] == ["a/pools/step-5", "b/pools/step-5"]


def test_what_is_no_pool_is_named(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="nowhere"):
        compare(tmp_path / "nowhere", tmp_path)
    with pytest.raises(PoolError, match=r"pool\.json"):
        compare(tmp_path, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="the base"):
        compare([], tmp_path)


def test_pools_may_be_objects_paths_or_text(tmp_path: Path) -> None:
    problems = make_problems(3)
    base = make_pool(tmp_path / "base", [1, 1, 0], 2, problems)
    policy = make_pool(tmp_path / "policy", [1, 0, 1], 2, problems)
    expected = compare(str(base.path), policy.path, **FAST)
    for one_base, one_policy in [(base, policy), ([base], [policy]), ([base.path], [[policy]])]:
        assert repr(compare(one_base, one_policy, **FAST)) == repr(expected)
    series = compare(base, [policy, str(base.path), [policy]], **FAST)
    assert [result.side.label for result in series.policies][1] == "base"
    assert len(series.policies) == 3
