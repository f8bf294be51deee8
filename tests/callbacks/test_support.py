"""SupportCallback on a real trl.GRPOTrainer, one process."""

import json
import os
import shutil
import threading
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest

from offleash.callbacks import SupportCallback
from offleash.callbacks.metrics import (
    interval_metrics,
    noise_metrics,
    sample_metrics,
    spelling_metrics,
    support_metrics,
)
from offleash.callbacks.policy.sampler import plan_rounds
from offleash.eval.errors import ConfigError, PoolError, VerifyError
from offleash.eval.lock import try_hold
from offleash.eval.pool.pool import Pool
from offleash.eval.problem import Verdict
from offleash.eval.sampling import derive_seed
from offleash.eval.tasks import load_task
from offleash.eval.tasks.countdown import Countdown
from tests.eval.pool.former import write_former


@pytest.fixture(scope="module")
def probe():
    return load_task("countdown", split="probe", n=12)


COLUMNS = ["problem_id", "completion", "status", "logprob", "entropy"]


def monitor_of(trainer, probe, **overrides):
    monitor = SupportCallback(trainer, probe, **{"k": 8, "every": 2, "score_k": 4, "batch_size": 48, **overrides})
    trainer.add_callback(monitor)
    return monitor


def test_the_monitor_does_not_change_training(make_trainer, probe, trajectory):
    plain = make_trainer("plain")
    plain.train()
    watched = make_trainer("watched")
    monitor = monitor_of(watched, probe, temperature=0.7, top_p=0.9, max_new_tokens=11)
    watched.train()
    assert sorted(monitor.history) == [0, 2, 4]
    assert trajectory(watched) == trajectory(plain)
    assert len({row["loss"] for row in trajectory(plain)}) > 1  # something was learned, so something could differ


@pytest.mark.long
def test_without_isolation_the_trajectory_would_differ(make_trainer, probe, trajectory, monkeypatch):
    from contextlib import nullcontext

    plain = make_trainer("plain", max_steps=2)
    plain.train()
    for module in ("policy.sampler", "support"):
        monkeypatch.setattr(f"offleash.callbacks.{module}.isolated_rng", nullcontext)
    careless = make_trainer("careless", max_steps=2)
    monitor_of(careless, probe)
    careless.train()
    assert trajectory(careless) != trajectory(plain)


def test_every_number_can_be_recomputed_from_the_pools_and_stands_once_in_tensorboard(
    make_trainer, probe, read_scalars, tmp_path
):
    trainer = make_trainer()
    monitor = monitor_of(trainer, probe)
    trainer.train()
    base = Pool.open(monitor.base_pool.path)
    scalars = read_scalars(tmp_path / "run" / "tensorboard")
    for step in (0, 2, 4):
        pool = Pool.open(tmp_path / "run" / "pools" / f"step-{step:06d}")
        assert pool.is_complete
        spelled = spelling_metrics(base.spelled(), pool.spelled())
        assert spelled["support/spelling/preserved"] > 0
        again = {
            **sample_metrics(pool.tally(), temperature=1.0),
            **support_metrics(base.hits(), pool.hits()),
            **noise_metrics(base.hits(), pool.hits().n_p),
            **interval_metrics(base.hits(), pool.hits()),
            **spelled,
        }
        for tag, value in again.items():
            np.testing.assert_equal(monitor.history[step][tag], value)
            shown = [v for s, v in scalars.get(tag, []) if s == step]
            is_left_out = np.isnan(value) or (tag == "support/detection_limit" and step)
            assert shown == ([] if is_left_out else [pytest.approx(value, rel=1e-6)]), tag
    for tag, points in scalars.items():
        if tag != "train/epoch":  # the Trainer itself logs it twice at the last step
            assert len({s for s, _ in points}) == len(points), f"{tag} is duplicated at a step"
    groups = {tag.split("/")[0] for tag in scalars}
    ours = {"support", "noise", "interval", "pass_at_k", "cover_at_tau", "entropy", "verify", "monitor"}
    assert groups == ours | {"train"}
    record = json.loads((tmp_path / "run" / "support.json").read_text())
    assert set(record["steps"]) == {"0", "2", "4"}


@pytest.mark.long
def test_step_0_is_a_second_draw_from_the_base_and_shows_no_kl_and_no_excess(make_trainer, probe):
    trainer = make_trainer(max_steps=1)
    monitor = monitor_of(trainer, probe, k=8)
    trainer.train()
    first = monitor.history[0]
    assert first["monitor/kl_base_k1"] == pytest.approx(0, abs=1e-5)
    assert min(first["support/unit/p_shrunk"], first["support/unit/p_expanded"]) > 0.001
    assert first["support/spelling/shrunk"] + first["support/spelling/expanded"] > 0  # noise alone shows some of both
    assert monitor.history[1]["monitor/kl_base_k1"] != 0


@pytest.mark.long
def test_a_second_run_draws_no_base_sample_and_another_model_is_not_mistaken_for_it(
    make_trainer, probe, tmp_path, capsys, lab_base
):
    first = make_trainer("first", max_steps=1)
    monitor = monitor_of(first, probe)
    first.train()
    parts = {p: p.stat().st_mtime_ns for p in monitor.base_pool.path.glob("samples-*")}
    second = make_trainer("second", max_steps=1, seed=4, learning_rate=1e-4)
    reused = monitor_of(second, probe)
    second.train()
    assert reused.base_pool.path == monitor.base_pool.path
    assert {p: p.stat().st_mtime_ns for p in monitor.base_pool.path.glob("samples-*")} == parts
    assert "complete, reused" in capsys.readouterr().out

    changed = tmp_path / "changed"
    shutil.copytree(lab_base, changed)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(changed)
    model.model.norm.weight.data *= 1.01
    model.save_pretrained(changed)
    third = make_trainer("third", max_steps=1)
    third.model.config._name_or_path = str(changed)
    other = monitor_of(third, probe)
    third.train()
    assert other.base_pool.path != monitor.base_pool.path


def test_a_base_drawn_in_mid_run_is_the_base_of_step_0(make_trainer, probe, tmp_path):
    trainer = make_trainer("run", max_steps=2, save_strategy="steps", save_steps=2)
    monitor = monitor_of(trainer, probe)
    trainer.train()
    path = monitor.base_pool.path
    original = Pool.open(path).read(["problem_id", "index", "completion", "logprob", "entropy"])
    shutil.rmtree(path)
    resumed = make_trainer("run", max_steps=3, save_strategy="no")
    late = monitor_of(resumed, probe)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    again = Pool.open(late.base_pool.path).read(["problem_id", "index", "completion", "logprob", "entropy"])
    assert late.base_pool.path == path
    assert again.column("completion").to_pylist() == original.column("completion").to_pylist()
    for column in ("logprob", "entropy"):
        gap = pc.max(pc.abs(pc.subtract(again.column(column), original.column(column)))).as_py()
        assert gap < 1e-4, column
    assert sorted(late.history) == [0, 2, 3]


@pytest.mark.long
def test_half_a_base_pool_is_completed_with_the_samples_it_would_have_had(make_trainer, probe):
    first = make_trainer("first", max_steps=1)
    monitor = monitor_of(first, probe)
    first.train()
    path = monitor.base_pool.path
    whole = Pool.open(path).read(["completion"]).column("completion").to_pylist()
    parts = sorted(path.glob("samples-*"))
    assert len(parts) > 1
    parts[0].unlink()
    second = make_trainer("second", max_steps=1)
    completed = monitor_of(second, probe)
    second.train()
    assert Pool.open(completed.base_pool.path).read(["completion"]).column("completion").to_pylist() == whole


def before_each_step(trainer, work):
    """Call `work` with the trainer before each training step, as another process might do it at any time."""
    original = trainer.training_step

    def step(*args, **kwargs):
        work()
        return original(*args, **kwargs)

    trainer.training_step = step


@pytest.mark.long
def test_parts_of_the_base_pool_that_are_deleted_in_mid_run_change_no_number(make_trainer, probe):
    def measured(name, work=lambda monitor: None):
        trainer = make_trainer(name, max_steps=2)
        monitor = monitor_of(trainer, probe, every=1)
        before_each_step(trainer, lambda: work(monitor))
        trainer.train()
        clock = ("monitor/seconds", "monitor/seconds_total")
        return {s: {tag: v for tag, v in m.items() if tag not in clock} for s, m in monitor.history.items()}

    def delete_most(monitor):
        for part in sorted(monitor.base_pool.path.glob("samples-*"))[:-1]:
            part.unlink()

    whole = measured("whole")
    np.testing.assert_equal(measured("cut", delete_most), whole)
    assert min(metrics["support/unit/preserved"] for metrics in whole.values()) > 0


@pytest.mark.long
def test_a_step_whose_pool_lost_a_part_has_no_numbers(make_trainer, probe, capsys):
    trainer = make_trainer(max_steps=2)
    monitor = monitor_of(trainer, probe, every=1)
    fill = monitor.policy_pool.fill

    def fill_and_lose(path, spec, seed):
        pool = fill(path, spec, seed)
        if path.name == "step-000001":
            sorted(path.glob("samples-*"))[0].unlink()
        return pool

    monitor.policy_pool.fill = fill_and_lose
    trainer.train()
    assert sorted(monitor.history) == [0, 2]
    assert monitor.latest["monitor/failed"] == 1
    assert "step 1 was not measured: PoolError" in capsys.readouterr().out


@pytest.mark.long
def test_a_resume_against_other_base_samples_is_refused(make_trainer, probe, tmp_path):
    trainer = make_trainer("run", max_steps=2, save_strategy="steps", save_steps=2)
    monitor = monitor_of(trainer, probe)
    trainer.train()
    path = monitor.base_pool.path
    rows = Pool.open(path).read([*COLUMNS, "index", "answer", "correct"]).to_pylist()
    for part in path.glob("samples-*"):
        part.unlink()
    other = [{**row, "correct": False} if row["correct"] else row for row in rows]
    Pool.open(path).append({name: [row[name] for row in other] for name in other[0]})
    resumed = make_trainer("run", max_steps=3, save_strategy="no")
    monitor_of(resumed, probe)
    with pytest.raises(PoolError, match=path.name):
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))


def test_token_entropy_and_logprob_equal_the_offline_scorer(make_trainer, probe, lab_model):
    from offleash.eval.scoring.teacher_forcing import score

    trainer = make_trainer(max_steps=1)
    monitor = monitor_of(trainer, probe)
    trainer.train()
    model, tokenizer = lab_model
    rows = [
        r
        for r in monitor.base_pool.read(COLUMNS).to_pylist()
        if r["entropy"] is not None and r["status"] != "truncated"
    ]
    assert len(rows) > 20
    prompts = {problem.id: problem.prompt for problem in probe.problems}
    scores = score(
        model,
        tokenizer([prompts[r["problem_id"]] for r in rows])["input_ids"],
        [[*tokenizer(r["completion"])["input_ids"], tokenizer.eos_token_id] for r in rows],
    )
    np.testing.assert_allclose(scores.logprob_s, [r["logprob"] for r in rows], atol=1e-4)
    np.testing.assert_allclose(scores.entropy_s, [r["entropy"] for r in rows], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings", [{"beta": 0.0}, {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}]
)
def test_the_base_stays_the_base_without_a_fixed_reference(make_trainer, probe, capsys, settings):
    fixed = make_trainer("fixed", max_steps=2)
    reference = monitor_of(fixed, probe)
    fixed.train()
    trainer = make_trainer("free", max_steps=2, **settings)
    monitor = monitor_of(trainer, probe)
    trainer.train()
    assert "loading a frozen copy" in capsys.readouterr().out
    assert monitor.base_pool.path == reference.base_pool.path
    assert monitor.history[0]["monitor/kl_base_k1"] == pytest.approx(0, abs=1e-5)
    # One step from the base the KL to it is that of the run whose reference never moved: the first update is the same
    # for any beta, since the KL's gradient is zero where policy and reference agree.
    assert monitor.history[2]["monitor/kl_base_k1"] == pytest.approx(
        reference.history[2]["monitor/kl_base_k1"], rel=0.3
    )
    assert abs(monitor.history[2]["monitor/kl_base_k1"]) > 0.01


def test_numbers_from_a_verifier_that_keeps_failing_stop_the_run(make_trainer, probe):
    class Failing(type(probe)):
        def verify(self, problems, completions, truncated=None):
            verdicts = super().verify(problems, completions, truncated)
            return [Verdict(None, False, "error"), *verdicts[1:]] if len(verdicts) > 1 else verdicts

    trainer = make_trainer(max_steps=1)
    monitor_of(trainer, Failing(split="probe", n=40), batch_size=64)
    with pytest.raises(VerifyError, match="verifier"):
        trainer.train()


def test_a_resume_with_other_monitor_settings_is_refused(make_trainer, probe, tmp_path):
    trainer = make_trainer("run", max_steps=2, save_strategy="steps", save_steps=2)
    monitor_of(trainer, probe)
    trainer.train()
    resumed = make_trainer("run", max_steps=3, save_strategy="no")
    monitor_of(resumed, probe, k=16)
    with pytest.raises(ConfigError, match="base pool countdown-"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))


@pytest.mark.long
def test_scores_at_another_temperature_are_another_base_pool_and_no_kl(make_trainer, probe):
    warm = make_trainer("warm", max_steps=1, temperature=1.0)
    cool = make_trainer("cool", max_steps=1, temperature=0.5)
    monitors = [monitor_of(trainer, probe, temperature=0.7) for trainer in (warm, cool)]
    for trainer in (warm, cool):
        trainer.train()
    assert monitors[0].base_pool.path != monitors[1].base_pool.path
    for monitor, tag in zip(monitors, ("entropy/token_T1", "entropy/token_T0.5"), strict=True):
        assert monitor.base_metrics[tag] == pytest.approx(monitor.history[0][tag], rel=0.25)
        assert np.isnan(monitor.history[0]["monitor/kl_base_k1"])
    assert monitors[1].base_metrics["entropy/token_T0.5"] < 0.8 * monitors[0].base_metrics["entropy/token_T1"]


@pytest.mark.long
def test_pools_of_an_earlier_run_are_not_replaced(make_trainer, probe):
    first = make_trainer("run", max_steps=1)
    monitor_of(first, probe)
    first.train()
    second = make_trainer("run", max_steps=1)
    monitor_of(second, probe)
    with pytest.raises(ConfigError, match="output_dir"):
        second.train()


@pytest.mark.long
def test_probe_problems_among_the_training_problems_are_refused(make_trainer):
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="12 of 12"):
        SupportCallback(trainer, load_task("countdown", split="train", n=12))


@pytest.mark.long
def test_an_unwritable_pool_is_said_and_does_not_stop_training(make_trainer, probe, tmp_path, capsys):
    trainer = make_trainer(max_steps=2)
    monitor_of(trainer, probe, every=1)
    blocked = tmp_path / "run" / "pools" / "step-000001"

    def block():
        blocked.parent.mkdir(parents=True, exist_ok=True)
        if not blocked.exists():
            blocked.write_text("a file where a folder should be")

    before_each_step(trainer, block)
    trainer.train()
    assert trainer.state.global_step == 2
    assert "WARNING: step 1 was not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("problems", "k", "score_k", "batch"), [(12, 8, 4, 48), (5, 64, 16, 7), (3, 7, 16, 100), (1, 1, 1, 1)]
)
def test_rounds_cover_every_draw_once_within_the_batch(problems, k, score_k, batch):
    rounds = plan_rounds(problems, k, score_k, batch)
    draws = [(b.problem, i) for r in rounds for b in r.blocks for i in range(b.start, b.start + b.size)]
    assert sorted(draws) == [(p, i) for p in range(problems) for i in range(k)]
    assert all(sum(b.size for b in r.blocks) <= batch for r in rounds)
    assert all(len({b.size for b in r.blocks}) == 1 for r in rounds)
    assert scored_of(rounds) == {(p, i) for p in range(problems) for i in range(min(k, score_k))}


def scored_of(rounds):
    return {(b.problem, i) for r in rounds for b in r.blocks for i in range(b.start, b.start + r.scored)}


def test_a_plan_that_stops_draws_by_score_k_and_scores_only_what_every_problem_has():
    fixed, stopped = plan_rounds(6, 16, 8, 48), plan_rounds(6, 16, 8, 48, successes=3)
    assert [round_.blocks for round_ in stopped] == [round_.blocks for round_ in fixed]
    assert scored_of(stopped) == {(p, i) for p in range(6) for i in range(3)}
    gaps = [np.array([1, 2, 3])] * 3 + [np.array([6, 7])] * 3  # what a crash left
    rounds = plan_rounds(6, 16, 8, 48, gaps, successes=3)
    assert scored_of(rounds) == {(p, i) for p in range(3) for i in (1, 2)}


# Base pools that several runs share


class Edited(Countdown):
    """Countdown with a reward that its user edited: an answer is right only if it is written with a minus sign."""

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.version = "edited"

    def verify(self, problems, completions, truncated=None):
        verdicts = super().verify(problems, completions, truncated)
        return [replace(v, correct=v.correct and "-" in c) for v, c in zip(verdicts, completions, strict=True)]


@pytest.mark.long
def test_after_an_edit_of_the_reward_the_base_pool_is_judged_again_and_step_0_shows_nothing(
    make_trainer, probe, capsys
):
    first = make_trainer("first", max_steps=1)
    monitor = monitor_of(first, probe)
    first.train()
    before = monitor.base_pool.read(["problem_id", "index", "completion", "logprob", "correct"]).to_pylist()
    capsys.readouterr()
    second = make_trainer("second", max_steps=1)
    edited = monitor_of(second, Edited(split="probe", n=12))
    second.train()
    said = capsys.readouterr().out
    assert "96 samples of " + monitor.base_pool.path.name + " judged again" in said
    assert "sampling" not in said.split("step 0")[0]
    after = edited.base_pool.read(["problem_id", "index", "completion", "logprob", "correct"]).to_pylist()
    assert [{**row, "correct": 0} for row in after] == [{**row, "correct": 0} for row in before]
    assert sum(row["correct"] for row in after) < sum(row["correct"] for row in before)
    assert min(edited.history[0]["support/unit/p_shrunk"], edited.history[0]["support/unit/p_expanded"]) > 0.001
    assert Pool.open(monitor.base_pool.path).read(["correct"])["correct"].to_pylist() == [r["correct"] for r in before]


@pytest.mark.long
def test_runs_with_another_k_or_other_problems_share_a_base_pool_and_a_resumed_one_finds_its_own_samples(
    make_trainer, probe, tmp_path
):
    trainer = make_trainer("run", max_steps=2, save_strategy="steps", save_steps=2)
    monitor = monitor_of(trainer, probe)
    trainer.train()
    base, metrics = monitor.base.hits.checksum(), dict(monitor.base_metrics)
    other = make_trainer("other", max_steps=1)
    wider = monitor_of(other, load_task("countdown", split="probe", n=16), k=10)
    other.train()
    assert wider.base_pool.path == monitor.base_pool.path
    assert wider.base.hits.n_p.tolist() == [10] * 16
    whole = Pool.open(monitor.base_pool.path)
    assert (whole.is_complete, whole.duplicates(), len(whole.problem_ids)) == (True, 0, 16)
    parts = whole.parts.paths()
    resumed = make_trainer("run", max_steps=3, save_strategy="no")
    late = monitor_of(resumed, probe)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert late.base.hits.checksum() == base
    np.testing.assert_equal(late.base_metrics, metrics)
    assert whole.parts.paths() == parts
    assert min(late.history[0]["support/unit/p_shrunk"], wider.history[0]["support/unit/p_shrunk"]) > 0.001


@pytest.mark.long
def test_other_arguments_of_the_chat_template_are_another_base(make_trainer, probe):
    names = set()
    for number, arguments in enumerate((None, {"enable_thinking": True}, {"enable_thinking": False})):
        trainer = make_trainer(f"run-{number}", max_steps=1, chat_template_kwargs=arguments)
        monitor = SupportCallback(trainer, probe, k=4)
        names.add(monitor.policy_pool.base_name(monitor.policy_pool.base_spec(0), monitor.base_pools))
    assert len(names) == 3


def test_rounds_do_not_depend_on_k_or_on_what_was_drawn_before():
    at_once = plan_rounds(12, 16, 4, 48)
    first = plan_rounds(12, 8, 4, 48)
    rest = plan_rounds(12, 16, 4, 48, [np.arange(8, 16)] * 12)
    assert [*first, *rest] == at_once
    for done in range(len(at_once)):
        drawn = {(b.problem, b.start + i) for r in at_once[:done] for b in r.blocks for i in range(b.size)}
        missing = [np.array([i for i in range(16) if (p, i) not in drawn], dtype=int) for p in range(12)]
        assert plan_rounds(12, 16, 4, 48, missing) == at_once[done:]


@pytest.mark.long
def test_a_run_that_finds_its_base_pool_being_sampled_waits_with_a_line(make_trainer, probe, capsys):
    trainer = make_trainer("run", max_steps=1)
    monitor = monitor_of(trainer, probe, k=4)
    policy_pool, base = monitor.policy_pool, monitor.base_pools
    spec = policy_pool.base_spec(derive_seed(0, "base"))
    lock = try_hold(base / policy_pool.base_name(spec, base))
    release = threading.Timer(2.5, os.close, [lock])
    release.start()
    trainer.train()
    release.join()
    said = capsys.readouterr().out
    assert said.count("another run is sampling it; waiting") == 1
    assert monitor.base_pool.is_complete


@pytest.mark.long
def test_the_base_pool_of_an_earlier_version_is_found_by_its_former_name(make_trainer, probe, tmp_path):
    first = make_trainer("first", max_steps=1)
    monitor = monitor_of(first, probe, k=4)
    first.train()
    path, spec = monitor.base_pool.path, monitor.base_pool.spec
    samples = monitor.base_pool.read(["problem_id", "index", "completion", "answer", "correct", "status"])
    former = path.parent / f"countdown-{spec.former_fingerprint()[:16]}"
    pool = Pool.create(former, spec, probe.problems, monitor.base_pool.answers)
    write_former(former, 3)
    pool = Pool.open(former)
    pool.append(samples)
    shutil.rmtree(path)
    second = make_trainer("second", max_steps=1)
    again = monitor_of(second, probe, k=4)
    second.train()
    assert again.base_pool.path == former
    assert again.base.hits.checksum() == monitor.base.hits.checksum()
    assert not path.exists()
