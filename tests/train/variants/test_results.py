"""Counted as TRL draws them, and as the explorers say they ask the base."""

import json

import pytest
import yaml

from offleash.train.explorers.samples.dynamic_sampling import rollouts
from offleash.train.variants.results import base_samples, read_budget

LAB = {
    **{"per_device_train_batch_size": 256, "steps_per_generation": 1, "num_iterations": 1, "num_generations": 8},
    **{"gradient_accumulation_steps": 1, "train_args": {"split": "train", "n": 8192}, "explorer": {}},
}


@pytest.mark.parametrize(
    ("changed", "steps", "processes"),
    [
        ({}, 200, 1),
        ({"per_device_train_batch_size": 128}, 200, 2),
        ({"per_device_train_batch_size": 128, "steps_per_generation": 2}, 400, 1),
        ({"per_device_train_batch_size": 128, "gradient_accumulation_steps": 2, "steps_per_generation": 2}, 200, 1),
        ({"num_iterations": 2}, 400, 1),
        ({"num_iterations": 2}, 399, 1),
    ],
)
def test_rollouts_are_equal_where_only_the_updates_differ(changed, steps, processes):
    assert rollouts({**LAB, **changed}, steps, processes) == 51200


def test_rollouts_are_counted_in_whole_numbers():
    odd = {**LAB, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 49}  # 1 / (1 / 49) is not 49
    assert rollouts(odd, 300, 1) == 300 * 49 * 8


@pytest.mark.parametrize(
    ("explorer", "samples"),
    [
        ({}, 0),
        ({"pass_at_k": {"k": 4}}, 0),
        ({"anchor": {}}, 1024 * 32),
        ({"anchor": {"problems": 8192, "k": 8}}, 65536),
        ({"anchor": {"problems": 100_000, "k": 8}}, 65536),
        ({"seeding": {"problems": 8192, "k": 8}}, 65536),
        ({"seeding": {"k": 8}}, 6400 * 8),
        ({"seeding": {"source": "traces.jsonl"}}, 0),
    ],
)
def test_base_samples_are_problems_times_k(explorer, samples):
    assert base_samples({**LAB, "explorer": explorer}, 51200) == samples


def test_a_run_is_read_from_what_it_left(tmp_path):
    assert read_budget(tmp_path, 200) == (None, 0, None)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**LAB, "explorer": {"anchor": {"k": 8}}}))
    assert read_budget(tmp_path, 200) == (None, 8192, None)
    checkpoint = tmp_path / "checkpoint-200"
    checkpoint.mkdir()
    log = [{"step": 10, "step_time": 0.5}, {"step": 10, "loss": 1.0}, {"step": 200, "step_time": 0.25}]
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 200, "log_history": log}))
    for rank in range(2):
        (checkpoint / f"rng_state_{rank}.pth").touch()
    assert read_budget(tmp_path, 200) == (102400, 8192, 10 * 0.5 + 190 * 0.25)
    (checkpoint / "dynamic_sampling.json").write_text(json.dumps({"rollouts": 51456}))
    assert read_budget(tmp_path, 90)[:2] == (51456, 8192)
    (tmp_path / "budget.json").write_text(json.dumps({"rollouts": 7, "base_samples": 8, "seconds": 9.5}))
    assert read_budget(tmp_path, 90) == (7, 8, 9.5)  # written before the checkpoint is deleted
