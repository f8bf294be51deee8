"""A watcher on checkpoints of the lab model: what it measures, in which order, and after which deaths."""

import json
import math
import os
import shutil

import numpy as np
import pytest

from offleash.callbacks.counted import count_pool, step_metrics
from offleash.callbacks.summary import read_record
from offleash.callbacks.watch.journal import Journal
from offleash.callbacks.watch.measure import Probe
from offleash.callbacks.watch.settings import WatchSettings
from offleash.callbacks.watch.watcher import Watcher
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.lock import try_hold
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.sample import SampleSettings
from offleash.eval.sampling import Sampling
from offleash.eval.tasks import load_task

pytestmark = pytest.mark.long

K = 8


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    task = load_task("countdown", split="probe", n=6)
    settings = SampleSettings(k=K, sampling=Sampling(max_new_tokens=12), save_every=0)
    return Probe(task, "lab", settings, score_k=2, base_pools=tmp_path_factory.mktemp("base-pools"))


@pytest.fixture
def watch(probe, tmp_path):
    """Measures once what is in a folder; the watcher that did."""

    def run(folder, out=None, probe=probe, **how):
        journal = Journal(out or folder, probe.settings.k, probe.temperature)
        fresh = Probe(probe.task, probe.base_name, probe.settings, score_k=probe.score_k, base_pools=probe.base_pools)
        watcher = Watcher(folder, fresh, journal, WatchSettings(once=True, **how))
        watcher.run()
        return watcher

    return run


def pool_of(folder, step):
    return Pool.open(folder / "pools" / f"step-{step:06d}")


def measured_steps(capsys):
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("offleash: step ")]
    return [int(line.split()[2].removesuffix(":")) for line in lines if "pass@1" in line]


def test_every_step_is_a_pool_whose_numbers_are_on_record_and_in_tensorboard(
    tmp_path, write_checkpoint, watch, read_scalars, capsys
):
    run = tmp_path / "run"
    write_checkpoint(run / "checkpoint-2", 0.9)
    write_checkpoint(run / "checkpoint-4", 0.8)
    watch(run, order="oldest")
    assert measured_steps(capsys) == [0, 2, 4]
    record = read_record(run)
    assert sorted(record["steps"]) == [0, 2, 4]
    base = Pool.open(run / record["base_pool"])
    scalars = read_scalars(run / "tensorboard")
    for step in (0, 2, 4):
        pool = pool_of(run, step)
        assert pool.is_complete
        again = step_metrics(count_pool(base), count_pool(pool), 1.0)
        told = record["steps"][step]
        scored = {"entropy/token_T1", "monitor/kl_base_k1"}
        np.testing.assert_equal(
            {tag: told[tag] for tag in again if tag not in scored},
            {tag: value for tag, value in again.items() if tag not in scored},
        )
        assert dict(scalars["pass_at_k/1"])[step] == pytest.approx(told["pass_at_k/1"])
        assert told["entropy/token_T1"] > 0
    assert record["steps"][0]["monitor/kl_base_k1"] == 0
    assert record["steps"][4]["monitor/kl_base_k1"] != 0
    weights = {step: pool_of(run, step).spec.weights for step in (0, 2, 4)}
    assert weights[0] == base.spec.weights
    assert len(set(weights.values())) == 3
    assert pool_of(run, 2).spec.model == str(run / "checkpoint-2")
    assert not list((run / "watch").rglob("pinned"))

    watch(run)
    assert measured_steps(capsys) == []  # the same command finds nothing to do


def test_newest_first_at_most_so_many_behind_every_nth_step(tmp_path, write_checkpoint, watch, capsys):
    run = tmp_path / "run"
    for step in (2, 4, 5, 6):
        write_checkpoint(run / f"checkpoint-{step}", 1 - step / 100)
    watch(run, out=tmp_path / "few", behind=2, every=2)
    assert measured_steps(capsys) == [0, 6, 4]
    watch(run, out=tmp_path / "few", every=2)
    assert measured_steps(capsys) == [2]


class Death(BaseException):
    """What kill -9 is to a process: nothing after it runs but what `finally` would not have done either."""


def die_at(monkeypatch, name, call):
    """Raise at the given call of a method."""
    module, _, method = name.rpartition(".")
    import importlib

    owner = importlib.import_module(module.rpartition(".")[0])
    kind = getattr(owner, module.rpartition(".")[2])
    real, calls = getattr(kind, method), iter(range(1, 100))

    def dying(*args, **kwargs):
        if next(calls) == call:
            raise Death
        return real(*args, **kwargs)

    monkeypatch.setattr(kind, method, dying)


def test_a_watcher_that_died_while_sampling_goes_on_with_the_missing_samples_although_the_checkpoint_is_gone(
    tmp_path, write_checkpoint, watch, monkeypatch, capsys
):
    run, whole = tmp_path / "run", tmp_path / "whole"
    for folder in (run, whole):
        write_checkpoint(folder / "checkpoint-2", 0.9)
    watch(whole)
    watch(run, every=100)  # step 0
    with monkeypatch.context() as patched:
        die_at(patched, "offleash.eval.pool.pool.Pool.append", 2)
        with pytest.raises(Death):
            watch(run)
    begun = pool_of(run, 2)
    assert not begun.is_complete
    parts = {path: path.stat().st_mtime_ns for path in begun.path.glob("samples-*")}
    assert parts
    write_checkpoint(run / "checkpoint-4", 0.8)  # the trainer goes on
    shutil.rmtree(run / "checkpoint-2")
    capsys.readouterr()
    watch(run)
    assert measured_steps(capsys) == [2, 4]
    assert parts.items() <= {path: path.stat().st_mtime_ns for path in begun.path.glob("samples-*")}.items()
    columns = ["problem_id", "index", "completion"]
    assert pool_of(run, 2).read(columns).to_pylist() == pool_of(whole, 2).read(columns).to_pylist()
    clock = ("monitor/seconds", "monitor/seconds_total")
    found, wanted = (
        {tag: value for tag, value in read_record(folder)["steps"][2].items() if tag not in clock}
        for folder in (run, whole)
    )
    np.testing.assert_equal(found, wanted)


@pytest.mark.parametrize(
    "moment",
    [
        "offleash.callbacks.watch.page.Page.write",
        "offleash.callbacks.watch.journal.Journal._write",
        "offleash.callbacks.watch.measure.Probe.metrics",
    ],
)
def test_whenever_a_watcher_dies_the_page_ends_with_every_step_once(
    tmp_path, write_checkpoint, watch, monkeypatch, read_scalars, moment
):
    run = tmp_path / "run"
    write_checkpoint(run / "checkpoint-2", 0.9)
    with monkeypatch.context() as patched:
        die_at(patched, moment, 2)  # the first is step 0
        with pytest.raises(Death):
            watch(run)
    watch(run)
    scalars = read_scalars(run / "tensorboard")
    assert [step for step, _ in scalars["pass_at_k/1"]] == [0, 2]
    assert all(len({step for step, _ in points}) == len(points) for points in scalars.values())
    assert sorted(read_record(run)["steps"]) == [0, 2]
    assert not list((run / "watch").rglob("pinned"))


def test_a_checkpoint_with_other_weights_is_measured_again_and_its_former_samples_are_kept_apart(
    tmp_path, write_checkpoint, watch, read_scalars, capsys
):
    run = tmp_path / "run"
    path = write_checkpoint(run / "checkpoint-2", 0.9)
    watch(run)
    former, before = pool_of(run, 2).spec.weights, read_record(run)["steps"][2]
    write_checkpoint(path, 0.5)
    capsys.readouterr()
    watch(run)
    assert "other weights" in (said := capsys.readouterr().out)
    assert "step-000002.1" in said
    assert pool_of(run, 2).spec.weights != former
    assert Pool.open(run / "watch" / "replaced" / "step-000002.1").spec.weights == former
    after = read_record(run)["steps"][2]
    assert after["entropy/token_T1"] != before["entropy/token_T1"]
    shown = [value for step, value in read_scalars(run / "tensorboard")["entropy/token_T1"] if step == 2]
    assert shown == [pytest.approx(after["entropy/token_T1"])]

    (path / "model.safetensors").touch()  # the same weights, copied back from somewhere
    watch(run)
    assert measured_steps(capsys) == []


def test_a_checkpoint_that_is_written_to_while_it_is_sampled_gives_no_number(
    tmp_path, write_checkpoint, watch, monkeypatch, capsys
):
    run = tmp_path / "run"
    path = write_checkpoint(run / "checkpoint-2", 0.9)
    watch(run, every=100)
    draw = Probe.draw

    def overwritten(self, sampler, target, base):
        pool = draw(self, sampler, target, base)
        if pool_of(run, 2).spec.weights == first[0]:
            write_checkpoint(path, 0.5)
        return pool

    from offleash.eval.fingerprint import weights_fingerprint

    first = [weights_fingerprint(path)]
    monkeypatch.setattr(Probe, "draw", overwritten)
    watch(run)
    assert "written to while" in capsys.readouterr().out
    assert pool_of(run, 2).spec.weights == weights_fingerprint(path) != first[0]
    assert read_record(run)["watch"]["2"]["weights"] == weights_fingerprint(path)


def test_a_step_that_another_watcher_has_is_left_to_it(tmp_path, write_checkpoint, watch, capsys):
    run = tmp_path / "run"
    write_checkpoint(run / "checkpoint-2", 0.9)
    write_checkpoint(run / "checkpoint-4", 0.8)
    lock = try_hold(run / "watch" / "step-000004")
    watch(run)
    assert measured_steps(capsys) == [0, 2]
    os.close(lock)
    watch(run)
    assert measured_steps(capsys) == [4]


def test_an_incomplete_and_a_damaged_checkpoint_are_left_out_by_name_and_the_others_measured(
    tmp_path, write_checkpoint, watch, capsys
):
    run = tmp_path / "run"
    write_checkpoint(run / "checkpoint-2", 0.9)
    write_checkpoint(run / "checkpoint-4", 0.8)
    (run / "checkpoint-4" / "trainer_state.json").unlink()
    unknown = write_checkpoint(run / "checkpoint-6", 0.7)
    (unknown / "config.json").write_text(json.dumps({"model_type": "nobody_knows"}))
    write_checkpoint(run / "checkpoint-8", math.nan)
    watcher = watch(run)
    assert measured_steps(capsys) == [0, 2]
    assert "trainer_state.json" in watcher.left_out[4]
    assert "checkpoint-6" in watcher.left_out[6] or "pinned" in watcher.left_out[6]
    assert "not numbers" in watcher.left_out[8]
    assert sorted(path.name for path in (run / "pools").iterdir()) == ["step-000000", "step-000002"]
    assert not list((run / "watch").rglob("pinned"))


def test_folders_without_a_trainers_state_are_looked_at_twice(tmp_path, write_checkpoint, watch, capsys):
    write_checkpoint(tmp_path / "run" / "weights" / "step_3", 0.9, trainer=False)
    watch(tmp_path / "run")
    assert measured_steps(capsys) == [0, 3]


def test_the_folder_of_another_monitor_and_other_settings_are_refused(tmp_path, write_checkpoint, watch, probe):
    run = tmp_path / "run"
    write_checkpoint(run / "checkpoint-2", 0.9)
    watch(run, every=100)
    more = SampleSettings(k=2 * K, sampling=Sampling(max_new_tokens=12))
    with pytest.raises(ConfigError, match="base pool countdown-"):
        watch(run, probe=Probe(probe.task, "lab", more, score_k=0, base_pools=probe.base_pools))
    record = json.loads((run / "support.json").read_text())
    del record["watch"]
    (run / "support.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="--out"):
        watch(run)
    (run / "support.json").write_text("{")
    with pytest.raises(ConfigError, match=r"support\.json"):
        watch(run)


def test_nothing_is_measured_of_a_folder_without_checkpoints_and_a_server_has_none(tmp_path, watch, probe):
    with pytest.raises(ConfigError, match="no checkpoint"):
        watch(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    for base, engine in (("http://localhost:1/v1", None), ("lab", "openai")):
        settings = SampleSettings(k=2, engine=engine)
        with pytest.raises(ConfigError, match="server"):
            Probe(probe.task, base, settings, score_k=0, base_pools=tmp_path)


def test_the_samples_of_a_step_are_not_those_of_another_template(tmp_path, write_checkpoint, watch):
    run = tmp_path / "run"
    path = write_checkpoint(run / "checkpoint-2", 0.9)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "{{ messages }}"}))
    with pytest.raises(PoolError, match="template"):
        watch(run)


def test_a_plan_that_stops_early_is_measured_as_such(tmp_path, write_checkpoint, watch, probe):
    run = tmp_path / "run"
    write_checkpoint(run / "checkpoint-2", 0.9)
    settings = SampleSettings(k=64, successes=2, sampling=Sampling(max_new_tokens=12))
    watch(run, probe=Probe(probe.task, "lab", settings, score_k=2, base_pools=tmp_path / "base-pools"))
    found = read_record(run)["steps"][2]
    assert found["monitor/samples"] < 6 * 64
    assert 0 < found["pass_at_k/1"] < found["pass_at_k/64"] <= 1
    assert found["entropy/token_T1"] > 0
