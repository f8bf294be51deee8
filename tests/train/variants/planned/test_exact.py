"""Exact outcomes of a run against the functions they are built on, problem set by problem set."""

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.stats.exact_support import EPSILONS, exact_support
from offleash.eval.stats.leash.tilt import leash_line
from offleash.train.variants.planned.exact import check_same_base, outcomes, problem_sets, read_path


def write(folder, step, probability_u, problem_u):
    (folder / "exact").mkdir(parents=True, exist_ok=True)
    np.savez(folder / "exact" / f"step-{step:06d}.npz", probability_u=probability_u, unit_problem=problem_u)


def test_every_set_of_problems_has_the_numbers_of_these_problems_alone(bandits):
    lab = bandits(np.random.default_rng(0), 30)
    policy_u = lab.sharpened(1.0, 1.6, 0.4)
    run = outcomes(lab.path(lab.sharpened(0.5, 1.3), policy_u))
    sets = problem_sets(30)
    assert sets.shape == (21, 30)
    assert sets[0].all()
    assert (~sets[1:]).sum(axis=0).tolist() == [1] * 30  # every problem is left out once
    for g in (0, 1, 20):
        kept = sets[g][lab.problem_u]
        whole = exact_support(lab.base_u[kept], policy_u[kept], lab.problem_u[kept])
        line = leash_line(lab.base_u[kept], lab.problem_u[kept], whole.pass_at_k[1])
        assert run.pass_tg[-1, g] == pytest.approx(whole.pass_at_k[1])
        for e, eps in enumerate(EPSILONS):
            assert run.nscr_tge[-1, g, e] == pytest.approx(whole.units[eps].nscr)
            assert run.line_ge[g, e] == pytest.approx(line.support.units[eps].nscr)
    everything = exact_support(lab.base_u, policy_u, lab.problem_u)
    assert run.reached_e.tolist() == [everything.units[eps].expanded for eps in EPSILONS]
    assert run.gained_e.tolist() == [everything.problems[eps].expanded for eps in EPSILONS]
    assert run.lost_e.tolist() == [everything.problems[eps].shrunk for eps in EPSILONS]
    assert (run.nscr_tge[0] == 0).all()


def test_the_reweighting_itself_lies_on_the_line_at_every_floor(bandits):
    lab = bandits(np.random.default_rng(1), 40)
    run = outcomes(lab.path(lab.tilted(1.3)))
    assert run.log_weight == pytest.approx(1.3)
    assert np.abs(run.nscr_tge[-1, 0] - run.line_ge[0]).max() < 0.01  # a unit at the floor may round either way


def test_a_run_is_read_in_the_order_of_its_steps(tmp_path, bandits):
    lab = bandits(np.random.default_rng(0), 5)
    policy_u = lab.tilted(0.7)
    for step, probability_u in ((0, lab.base_u), (1000, policy_u), (200, lab.tilted(0.2))):
        write(tmp_path, step, probability_u, lab.problem_u + 3)
    path = read_path(tmp_path)
    assert path.steps == (0, 200, 1000)
    assert path.problem_u.tolist() == lab.problem_u.tolist()
    assert path.probability_tu[-1].tolist() == policy_u.tolist()
    assert path.problems == 5


def test_what_is_no_record_of_the_same_units_is_refused(tmp_path, bandits):
    lab = bandits(np.random.default_rng(0), 5)
    with pytest.raises(ConfigError, match="monitor_exact"):
        read_path(tmp_path)
    write(tmp_path, 50, lab.base_u, lab.problem_u)
    with pytest.raises(ConfigError, match="step 0"):
        read_path(tmp_path)
    write(tmp_path, 0, lab.base_u[:-1], lab.problem_u[:-1])
    with pytest.raises(ConfigError, match="step-000050"):
        read_path(tmp_path)
    (tmp_path / "exact" / "step-000050.npz").write_bytes(b"PK")
    with pytest.raises(ConfigError, match="step-000050"):
        read_path(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "empty", "nan", "above 1", "too few"])
def test_a_damaged_record_is_named_in_one_line(tmp_path, bandits, damage):
    lab = bandits(np.random.default_rng(0), 5)
    changed = {"nan": lab.base_u * np.nan, "above 1": lab.base_u + 1, "too few": lab.base_u[1:]}
    write(tmp_path, 0, lab.base_u, lab.problem_u)
    write(tmp_path, 9, changed.get(damage, lab.base_u), lab.problem_u)
    file = tmp_path / "exact" / "step-000009.npz"
    if damage in ("cut", "empty"):
        file.write_bytes(file.read_bytes()[: 100 if damage == "cut" else 0])
    with pytest.raises(ConfigError, match=r"step-000009\.npz cannot be read .* train the run again"):
        read_path(tmp_path)


def test_runs_from_different_bases_are_not_compared(bandits):
    lab, other = bandits(np.random.default_rng(0), 5), bandits(np.random.default_rng(1), 5)
    check_same_base({"plain seed 0": lab.path(), "focal seed 0": lab.path(lab.tilted(1.0))})
    with pytest.raises(ConfigError, match="focal seed 0"):
        check_same_base({"plain seed 0": lab.path(), "focal seed 0": other.path()})
