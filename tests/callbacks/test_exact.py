"""Exact probabilities in a monitored run, on a real trl.GRPOTrainer."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from offleash.callbacks import SupportCallback, tags
from offleash.callbacks.exact import ExactProbabilities, exact_metrics
from offleash.callbacks.policy.sampler import TrainerSampler
from offleash.callbacks.summary import run_summary
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.sampling import Sampling
from offleash.eval.scoring.exact import ExactUnits, exact_units
from offleash.eval.scoring.positions import where_lost
from offleash.eval.stats.exact_support import EPSILONS
from offleash.eval.tasks import load_task

K = 64


@pytest.fixture(scope="module")
def probe():
    return load_task("countdown", split="probe", n=6, strict=True)


def test_a_run_measures_exactly_what_its_samples_estimate_and_training_does_not_notice(
    make_trainer, probe, trajectory, read_scalars, tmp_path, capsys
):
    plain = make_trainer("plain", max_steps=2)
    plain.train()
    trainer = make_trainer("run", max_steps=2)
    monitor = SupportCallback(trainer, probe, k=K, every=2, score_k=1, batch_size=K * 6, exact=True)
    trainer.add_callback(monitor)
    trainer.train()
    assert trajectory(trainer) == trajectory(plain)
    folder = tmp_path / "run"
    assert sorted(path.name for path in (folder / "exact").iterdir()) == ["step-000000.npz", "step-000002.npz"]
    base, policy = (ExactUnits.load(folder / "exact" / f"step-00000{step}.npz") for step in (0, 2))

    # The policy at its last step, scored by another way in.
    again = exact_units(
        trainer.model, trainer.processing_class, probe, probe.problems, max_new_tokens=trainer.max_completion_length
    )
    np.testing.assert_allclose(policy.probability_u, again.probability_u, rtol=1e-4)
    assert np.abs(policy.probability_u - base.probability_u).max() > 1e-3

    # Sampled frequencies agree with the probabilities, per problem and together.
    for step, units in ((0, base), (2, policy)):
        hits = Pool.open(folder / "pools" / f"step-{step:06d}").hits()
        assert hits.unit_answer == units.unit_answer
        p = units.problem_probabilities()
        spread = np.sqrt(K * p * (1 - p))
        assert np.abs((hits.correct_p - K * p) / spread).max() < 4
        assert abs(hits.correct_p.sum() - K * p.sum()) < 3.5 * math.sqrt((spread**2).sum())

    start, end = monitor.history[0], monitor.history[2]
    for eps in EPSILONS:
        assert start[tags.at_floor(tags.EXACT_NSCR, eps).tag] == start[tags.at_floor(tags.LEASH_NSCR, eps).tag] == 0
    assert end["exact/pass_at_1"] == pytest.approx(policy.pass_at_1())
    kept = (base.probability_u >= 1e-3) & (policy.probability_u >= 1e-3)
    either = (base.probability_u >= 1e-3) | (policy.probability_u >= 1e-3)
    net = np.sum(policy.probability_u >= 1e-3) - np.sum(base.probability_u >= 1e-3)
    assert end["exact/nscr_1e-3"] == pytest.approx(net / either.sum())
    assert kept.any()
    where = where_lost(base, policy, 1e-3).lost
    assert end["exact/lost"] == where.units == np.sum((base.probability_u >= 1e-3) & (policy.probability_u < 1e-3))
    assert end["exact/still_executable"] == pytest.approx(where.after_first[1], nan_ok=True)
    assert start["exact/lost"] == 0
    assert math.isnan(start["exact/lost_at_first_token"])
    shown = read_scalars(folder / "tensorboard")
    assert shown["exact/nscr_1e-6"] == [(0, 0.0), (2, pytest.approx(end["exact/nscr_1e-6"]))]
    record = json.loads((folder / "support.json").read_text())
    assert record["steps"]["2"]["exact/leash/entropy"] == pytest.approx(end["exact/leash/entropy"])
    assert "exact NSCR(1e-3)" in run_summary(record, folder)

    # A resumed run finds its base in the file of step 0, or computes it again from the frozen base.
    resumed = ExactProbabilities(monitor.policy_pool.sampler, probe, folder)
    resumed.begin(1)
    assert sorted(path.name for path in (folder / "exact").iterdir()) == ["step-000000.npz"]
    measured = resumed.measure(2)
    assert measured == pytest.approx({tag: end[tag] for tag in measured}, nan_ok=True)
    (folder / "exact" / "step-000000.npz").unlink()
    without = ExactProbabilities(monitor.policy_pool.sampler, probe, folder)
    capsys.readouterr()
    assert without.measure(2) == pytest.approx(measured, nan_ok=True)
    assert "step-000000.npz is missing" in capsys.readouterr().out
    np.testing.assert_allclose(without.base.probability_u, base.probability_u, rtol=1e-4)


def sampler_of(stand_in_trainer, sharded=False, images=False, **sampling):
    trainer = stand_in_trainer(is_deepspeed_enabled=sharded, is_fsdp_enabled=False, accelerator=None)
    sampler = TrainerSampler.__new__(TrainerSampler)
    sampler.trainer, sampler.sampling = trainer, Sampling(max_new_tokens=20, **sampling)
    sampler.with_images = images
    return sampler


def test_where_the_values_would_not_be_exact_the_run_does_not_start(stand_in_trainer, probe, tmp_path):
    unlisted = SimpleNamespace(name="math500", correct_answers=lambda problem: None)
    loose = load_task("countdown", split="probe", n=1)
    for task, settings, message in (
        (unlisted, {}, "math500"),
        (loose, {}, "strict: true"),
        (probe, {"top_p": 0.9}, "top-p"),
        (probe, {"sharded": True}, "DeepSpeed"),
        (probe, {"images": True}, "images"),
    ):
        with pytest.raises(ConfigError, match=message):
            ExactProbabilities(sampler_of(stand_in_trainer, **settings), task, tmp_path)


def units_of(probability_u, answers=("a", "b")):
    nothing = np.zeros(0)
    return ExactUnits(
        np.zeros(len(answers), dtype=int), answers, np.array(probability_u),
        nothing, (), nothing, nothing, nothing, nothing, ("p",),
    )  # fmt: skip


def test_the_files_of_other_problems_are_not_compared():
    with pytest.raises(PoolError, match="other problems or answers"):
        exact_metrics(units_of([0.1, 0.2]), units_of([0.1, 0.2], answers=("a", "c")))


def test_a_problem_that_is_always_solved_has_no_reweighting_beyond_it_and_one_never_solved_none_at_all():
    found = exact_metrics(units_of([0.0, 0.0]), units_of([0.1, 0.2]))
    assert found["exact/pass_at_1"] == pytest.approx(0.3)
    assert found["exact/nscr_1e-1"] == 1
    assert math.isnan(found["exact/leash/nscr_1e-1"])
    assert math.isnan(found["exact/leash/entropy"])
