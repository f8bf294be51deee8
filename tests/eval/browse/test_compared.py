"""A comparison's pools in the map: the columns are the policies, and what moved can be read."""

from offleash.eval.browse import compared as room
from offleash.eval.browse.compared import compared
from offleash.eval.browse.embed import key
from offleash.eval.comparison.compare import compare
from offleash.eval.pool.spec import Plan
from offleash.eval.pool.testing import make_pool


def made(tmp_path, names):
    base = make_pool(tmp_path / "base", [8, 8, 1, 0])
    hits = [8, 8, 1, 0], [8, 0, 0, 0]
    policies = [make_pool(tmp_path / name, found) for name, found in zip(names, hits, strict=True)]
    return compare(base, policies, resamples=20)


def test_steps_are_columns_and_a_lost_problem_can_be_read(tmp_path):
    found = made(tmp_path, ["step-10", "step-20"])
    data = compared(found.pools, {policy.side.label: policy.side.step for policy in found.policies})
    (task,) = data[key("tasks")]
    grid = data[key("grid", run=task, level="problem")]
    assert list(grid["steps"]) == ["10", "20"]
    assert grid["words"] == {}
    assert grid["steps"]["20"]["hits"] == [8, 0, 0, 0]
    assert grid["marks"][int(grid["steps"]["20"]["marks"][1])] == "lost"
    cell = data[key("cell", run=task, step="20", problem="p1")]
    assert (cell["base"]["correct"], cell["policy"]["correct"]) == (8, 0)


def test_policies_without_a_step_are_called_by_their_names(tmp_path):
    found = made(tmp_path, ["plain", "focal"])
    data = compared(found.pools, {policy.side.label: policy.side.step for policy in found.policies})
    (task,) = data[key("tasks")]
    grid = data[key("grid", run=task, level="answer")]
    assert grid["words"] == {"1": "plain", "2": "focal"}
    assert grid["steps"].keys() == grid["words"].keys()


def test_where_cells_do_not_fit_those_that_moved_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "SAMPLES", 16)
    found = made(tmp_path, ["step-10", "step-20"])
    data = compared(found.pools, {policy.side.label: policy.side.step for policy in found.policies})
    cells = [name.split("\n")[-1] for name in data if name.startswith("cell\n")]
    assert cells[0] == "p1"
    assert len(cells) == 2


def test_pools_that_stop_early_are_not_in_the_map(tmp_path):
    base = make_pool(tmp_path / "base", [2, 2], plan=Plan(successes=2))
    assert compare(base, make_pool(tmp_path / "policy", [2, 0], plan=Plan(successes=2)), resamples=20).pools == ()
