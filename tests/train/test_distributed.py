"""Two processes with gloo, and DeepSpeed ZeRO-3, launched as a user would; groups of 8 straddle ranks of 12."""

import json
import shutil

import pytest

from offleash.eval.pool.pool import Pool
from offleash.eval.scoring.exact import ExactUnits

pytestmark = pytest.mark.long

SETTINGS = {
    **{"max_steps": 3, "per_device_train_batch_size": 12, "save_steps": 3, "lr_scheduler_type": "constant"},
    "probe_args": '{"split": "probe", "n": 9, "strict": true}',
}


def samples(pool):
    return Pool.open(pool).read(["problem_id", "index", "completion", "answer"]).to_pylist()


@pytest.fixture(scope="module")
def runs(tmp_path_factory, launch):
    folder = tmp_path_factory.mktemp("ranks")
    made = {}
    for name, processes, extra in (
        ("gloo", "cpu_two_processes", {"monitor_exact": "true"}),
        ("unwatched", "cpu_two_processes", {"monitor_every": 0}),
        ("zero3", "cpu_zero3", {}),
    ):
        done = launch(folder / name, processes, **SETTINGS, **extra)
        assert done.returncode == 0, done.stderr[-4000:]
        made[name] = done
    return folder, made


def test_on_two_ranks_the_monitor_does_not_change_training(runs, logged, trajectory):
    folder, _ = runs
    assert trajectory(logged(folder / "gloo", 3)) == trajectory(logged(folder / "unwatched", 3))


def test_on_two_ranks_exact_probabilities_agree_with_the_samples(runs):
    folder, _ = runs
    for step in (0, 2, 3):
        units = ExactUnits.load(folder / "gloo" / "exact" / f"step-{step:06d}.npz")
        hits = Pool.open(folder / "gloo" / "pools" / f"step-{step:06d}").hits()
        p = units.problem_probabilities()
        assert abs(hits.correct_p.sum() - (hits.n_p * p).sum()) < 4 * (hits.n_p * p * (1 - p)).sum() ** 0.5


def test_zero3_and_gloo_train_and_measure_the_same(runs, logged, trajectory):
    folder, made = runs
    ours, theirs = trajectory(logged(folder / "zero3", 3)), trajectory(logged(folder / "gloo", 3))
    for row, other in zip(ours, theirs, strict=True):
        for key in ("loss", "reward", "kl", "entropy", "completions/mean_length"):
            assert row[key] == pytest.approx(other[key], abs=2e-4), key
    for step in (0, 2, 3):
        name = f"pools/step-{step:06d}"
        assert samples(folder / "zero3" / name) == samples(folder / "gloo" / name)
    assert "complete, reused" in made["zero3"].stdout  # one base pool for both


@pytest.mark.parametrize("processes", ["cpu_two_processes", pytest.param("cpu_zero3", marks=pytest.mark.slow)])
def test_on_two_ranks_small_micro_batches_of_rollouts_by_length_make_the_steps_of_large_ones(
    processes, runs, launch, logged, trajectory, tmp_path
):
    folder, _ = runs
    small = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "monitor_every": 0}
    done = launch(tmp_path / "small", processes, **SETTINGS | small)
    assert done.returncode == 0, done.stderr[-4000:]
    ours, theirs = trajectory(logged(tmp_path / "small", 3)), trajectory(logged(folder / "unwatched", 3))
    for row, other in zip(ours, theirs, strict=True):
        for key in ("loss", "grad_norm", "reward", "completions/mean_length"):
            assert row[key] == pytest.approx(other[key], rel=1e-3, abs=2e-4), key


@pytest.mark.slow
def test_two_ranks_continue_on_the_same_trajectory(runs, launch, logged, trajectory, tmp_path):
    folder, _ = runs
    whole, cut = launch(folder / "six", "cpu_two_processes", **SETTINGS | {"max_steps": 6}), folder / "gloo"
    assert whole.returncode == 0, whole.stderr[-4000:]
    shutil.copytree(cut, tmp_path / "run")
    shutil.copytree(folder / "base-pools", tmp_path / "base-pools")
    resumed = launch(
        tmp_path / "run", "cpu_two_processes", **SETTINGS | {"max_steps": 6}, resume="true", allow="max_steps"
    )
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    assert trajectory(logged(tmp_path / "run", 6)) == trajectory(logged(folder / "six", 6))
    for name in ("rng_state_1.pth", "checksums.json"):  # a kill between the files of two ranks
        (tmp_path / "run" / "checkpoint-6" / name).unlink()
    again = launch(tmp_path / "run", "cpu_two_processes", **SETTINGS | {"max_steps": 6}, resume="true")
    assert again.returncode == 0, again.stderr[-4000:]
    assert "checkpoint-6 is incomplete" in again.stdout
    assert trajectory(logged(tmp_path / "run", 6)) == trajectory(logged(folder / "six", 6))
    alone = {"max_steps": 9, "per_device_train_batch_size": 24}
    other = launch(tmp_path / "run", **SETTINGS | alone, resume="true")
    assert other.returncode != 0
    assert "was written by 2 processes" in other.stderr
    assert (tmp_path / "run" / "checkpoint-6").exists()


@pytest.mark.slow
def test_a_run_under_zero3_is_not_continued_without_it(runs, launch, tmp_path):
    folder, _ = runs
    shutil.copytree(folder / "zero3", tmp_path / "run")
    longer = {**SETTINGS, "max_steps": 6, "resume": "true", "allow": "max_steps"}
    refused = launch(tmp_path / "run", "cpu_two_processes", **longer)
    assert refused.returncode != 0
    assert 'sharding was "zero3", now "none"' in refused.stderr
    (tmp_path / "run" / "launch.json").unlink()  # as an older Offleash left it
    refused = launch(tmp_path / "run", "cpu_two_processes", **longer)
    assert refused.returncode != 0
    assert "(sharding none)" in refused.stderr
    resumed = launch(tmp_path / "run", "cpu_zero3", **longer)
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    assert "continuing from" in resumed.stdout


def test_every_rank_of_a_pool_is_in_it_once(runs):
    folder, _ = runs
    pool = Pool.open(folder / "gloo" / "pools" / "step-000003")
    assert pool.is_complete
    assert pool.duplicates() == 0
    record = json.loads((folder / "gloo" / "support.json").read_text())
    assert set(record["steps"]) == {"0", "2", "3"}
    assert record["steps"]["0"]["monitor/kl_base_k1"] == pytest.approx(0, abs=1e-5)


PATCH = """
import torch
from offleash.callbacks.policy.sampler import TrainerSampler
from offleash.callbacks.support import SupportCallback
generate, metrics = TrainerSampler._generate, SupportCallback._metrics

def failing_generate(self, *args):
    if self.trainer.state.global_step == {generate_at} and self.trainer.accelerator.process_index == 1:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return generate(self, *args)

def failing_metrics(self, *args):
    if self.trainer.state.global_step == {metrics_at}:
        raise ValueError("no number")  # on the main process: the only one that counts
    return metrics(self, *args)

TrainerSampler._generate, SupportCallback._metrics = failing_generate, failing_metrics
"""


def test_a_monitor_that_fails_on_one_rank_fails_on_every_rank_and_training_goes_on(
    runs, launch_patched, logged, trajectory, read_scalars, tmp_path
):
    folder, _ = runs
    patch = PATCH.format(generate_at=1, metrics_at=2)
    done = launch_patched(tmp_path / "run", patch, "cpu_two_processes", **SETTINGS, monitor_every=1)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "step 1 was not measured: RemoteError: process 1: OutOfMemoryError: CUDA out of memory" in done.stdout
    assert "step 2 was not measured: ValueError: no number" in done.stdout
    assert trajectory(logged(tmp_path / "run", 3)) == trajectory(logged(folder / "unwatched", 3))
    failed = read_scalars(tmp_path / "run")["monitor/failed"]
    assert failed == [(0, 0), (1, 1), (2, 2), (3, 2)]
    record = json.loads((tmp_path / "run" / "support.json").read_text())
    assert set(record["steps"]) == {"0", "3"}


def test_a_rank_that_fails_where_the_others_wait_for_it_ends_the_run(launch_patched, tmp_path):
    patch = PATCH.format(generate_at=2, metrics_at=-1)
    done = launch_patched(tmp_path / "run", patch, "cpu_zero3", **SETTINGS)
    assert done.returncode != 0
    assert "offleash: error: process 1: OutOfMemoryError: CUDA out of memory" in done.stderr
