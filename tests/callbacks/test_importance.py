"""Importance weights in a monitored run, on a real trl.GRPOTrainer."""

import math

import numpy as np
import pytest

from offleash.callbacks import SupportCallback
from offleash.callbacks.policy.sampler import TrainerSampler
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool
from offleash.eval.tasks import load_task

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def probe():
    return load_task("countdown", split="probe", n=8)


def monitor_of(trainer, probe, **overrides):
    settings = {"k": 16, "every": 2, "score_k": 4, "batch_size": 64, "importance": True}
    monitor = SupportCallback(trainer, probe, **{**settings, **overrides})
    trainer.add_callback(monitor)
    return monitor


def test_a_run_is_weighed_from_equal_models_on_and_training_does_not_notice(make_trainer, probe, trajectory, tmp_path):
    plain = make_trainer("plain", max_steps=2)
    plain.train()
    watched = make_trainer("run", max_steps=2)
    monitor = monitor_of(watched, probe)
    watched.train()
    assert trajectory(watched) == trajectory(plain)
    start, end = monitor.history[0], monitor.history[2]
    # At step 0 both models are one: every weight is 1 / (n + n), and nothing is lost or gained.
    assert start["support/importance/log_ratio_variance"] == pytest.approx(0, abs=1e-6)
    assert start["support/importance/nscr"] == 0
    assert start["support/importance/srr"] == 1
    base, policy = (pool.hits() for pool in (monitor.base_pool, Pool.open(tmp_path / "run" / "pools" / "step-000000")))
    correct = base.correct_p + policy.correct_p
    assert start["support/importance/effective_samples"] == pytest.approx(correct[correct > 0].mean(), rel=1e-3)
    assert end["support/importance/log_ratio_variance"] > 0
    assert end["support/importance/withheld"] in (0, 1)
    assert math.isnan(end["support/importance/nscr"]) == bool(end["support/importance/withheld"])


def test_scores_of_stored_text_are_those_recorded_while_drawing(make_trainer, probe, tmp_path):
    trainer = make_trainer(max_steps=2)
    monitor = monitor_of(trainer, probe)
    trainer.train()
    sampler: TrainerSampler = monitor.policy_pool.sampler
    pool = Pool.open(tmp_path / "run" / "pools" / "step-000002")
    columns = ["problem_id", "index", "completion", "tokens", "logprob", "base_logprob"]
    rows = [row for row in pool.read(columns).to_pylist() if row["logprob"] is not None]
    place = {problem.id: p for p, problem in enumerate(probe.problems)}
    ids = [(place[row["problem_id"]], sampler.encode(row["completion"], row["tokens"])) for row in rows]
    kept = [i for i, (_, tokens) in enumerate(ids) if len(tokens) == rows[i]["tokens"]]
    assert len(kept) > 0.9 * len(rows)
    policy, base = sampler.score([ids[i] for i in kept])
    assert np.abs(policy - base).max() > 1e-4
    assert policy == pytest.approx([rows[i]["logprob"] for i in kept], abs=1e-3)
    assert base == pytest.approx([rows[i]["base_logprob"] for i in kept], abs=1e-3)


def test_samples_of_another_distribution_than_is_scored_are_refused(make_trainer, probe):
    for setting in ({"temperature": 0.7}, {"top_p": 0.9}):
        with pytest.raises(ConfigError, match="importance weights need"):
            monitor_of(make_trainer(), probe, **setting)


def test_texts_whose_tokens_are_not_recovered_are_withheld(make_trainer, probe, monkeypatch):
    trainer = make_trainer(max_steps=1)
    monitor = monitor_of(trainer, probe)
    monkeypatch.setattr(TrainerSampler, "encode", lambda self, text, tokens: [5] * (tokens + 1))
    trainer.train()
    assert monitor.history[0]["support/importance/withheld"] == 1
    assert math.isnan(monitor.history[0]["support/importance/nscr"])
