"""SupportCallback(successes=r): problems are drawn until r successes, and only what that plan can tell is reported."""

import json
import math

import pytest

from offleash.callbacks import SupportCallback, SupportGuard
from offleash.callbacks.counted import count_pool, step_metrics
from offleash.callbacks.metrics import measured, withheld
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool
from offleash.eval.tasks import load_task

pytestmark = pytest.mark.long

K, SUCCESSES = 32, 3


@pytest.fixture(scope="module")
def probe():
    return load_task("countdown", split="probe", n=10)


def monitor_of(trainer, probe, **overrides):
    settings = {"k": K, "successes": SUCCESSES, "every": 2, "score_k": 4, "batch_size": 40, **overrides}
    monitor = SupportCallback(trainer, probe, **settings)
    trainer.add_callback(monitor)
    return monitor


def test_a_run_is_measured_by_the_stopped_experiment_and_is_not_changed_by_it(
    make_trainer, probe, trajectory, read_tags, tmp_path
):
    plain = make_trainer("plain", max_steps=2)
    plain.train()
    trainer = make_trainer("run", max_steps=2, save_strategy="steps", save_steps=2)
    monitor = monitor_of(trainer, probe)
    trainer.train()
    assert trajectory(trainer) == trajectory(plain)

    base, last = monitor.base_pool, Pool.open(tmp_path / "run" / "pools" / "step-000002")
    for pool in (base, last):
        hits = pool.hits()
        done = hits.correct_p == SUCCESSES
        assert done.any()
        assert (hits.n_p[~done] == K).all()
        rows = sorted(pool.read(["problem_id", "index", "correct"]).to_pylist(), key=lambda row: row["index"])
        ends = {row["problem_id"]: row["correct"] for row in rows}
        assert all(ends[name] for name, stopped in zip(hits.problem_ids, done, strict=True) if stopped)
    assert last.hits().n_p.sum() < len(probe.problems) * K

    found = step_metrics(count_pool(base), count_pool(last), trainer.temperature)
    unknown = withheld(K, SUCCESSES)
    assert {tag: monitor.history[2][tag] for tag in found if tag not in unknown} == {
        tag: value for tag, value in found.items() if tag not in unknown
    }
    steps = read_tags(tmp_path / "run" / "tensorboard")
    assert not {tag for tag in steps if tag in unknown or tag.replace("/base/", "/") in unknown}
    assert steps["monitor/samples"] == steps["support/problem/nscr"] == [0, 2]
    recorded = json.loads((tmp_path / "run" / "support.json").read_text())["steps"]["2"]
    assert {tag for tag, value in recorded.items() if value is None} >= unknown

    again = make_trainer("again", max_steps=1)
    monitor_of(again, probe, every=1)
    again.train()
    assert len(list((tmp_path / "base-pools").iterdir())) == 1  # found again
    resumed = make_trainer("run", max_steps=4)
    monitor_of(resumed, probe, successes=2)
    with pytest.raises(ConfigError, match="successes"):
        resumed.train(resume_from_checkpoint=True)


def test_a_base_pool_that_lost_a_part_is_completed(make_trainer, probe, tmp_path):
    first = monitor_of(make_trainer("first", max_steps=1), probe, every=1)
    first.measure(0)
    first.base_pool.parts.paths()[0].unlink()
    second = monitor_of(make_trainer("second", max_steps=1), probe, every=1)
    second.measure(0)
    assert count_pool(second.base_pool).successes == SUCCESSES  # which refuses an incomplete pool


def test_scores_and_lengths_are_of_samples_that_are_drawn_whatever_comes(make_trainer, probe):
    monitor = monitor_of(make_trainer(max_steps=1), probe)
    monitor.measure(0)
    tally = count_pool(monitor.base_pool).tally
    assert set(tally.hits.n_p.tolist()) == {SUCCESSES}
    assert math.isfinite(monitor.base_metrics["entropy/token_T1"])
    rows = monitor.base_pool.read(["index", "entropy"]).to_pylist()  # score_k is 4, one more than every problem has
    assert {row["index"] for row in rows if row["entropy"] is not None} == set(range(SUCCESSES))


def test_what_needs_a_fixed_number_of_samples_is_refused_by_name(make_trainer, probe):
    trainer = make_trainer(max_steps=1)
    with pytest.raises(ConfigError, match="importance"):
        SupportCallback(trainer, probe, k=K, successes=3, importance=True)
    for wrong in (0, K + 1):
        with pytest.raises(ConfigError, match=f"successes.*{wrong}"):
            SupportCallback(trainer, probe, k=K, successes=wrong)
    monitor = monitor_of(trainer, probe)
    trainer.add_callback(SupportGuard(monitor, "support/leash/above < 0"))
    with pytest.raises(ConfigError, match="support/leash/above"):
        trainer.train()
    tags = {metric.tag for metric in measured(K, 1.0, SUCCESSES)}
    assert tags.isdisjoint(withheld(K, SUCCESSES))
    assert {"support/unit/nscr", "support/problem/p_shrunk", "pass_at_k/32"} <= tags
