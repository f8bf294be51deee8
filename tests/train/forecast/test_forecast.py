"""A recipe's numbers by hand, and what they were read from in TRL and DeepSpeed."""

import inspect

import pytest
from transformers import AutoConfig
from trl import GRPOTrainer

from offleash.train.forecast.forecast import forecast, layout_of
from offleash.train.forecast.hardware import GPUS, Machines
from offleash.train.forecast.lengths import Lengths
from offleash.train.forecast.memory import LIVE_PARAMETERS, LOGIT_TILE
from offleash.train.forecast.model_size import measure_model
from offleash.train.recipe.config import parse_recipe

LENGTHS = Lengths(10, 10, 20)


@pytest.fixture(scope="module")
def lab_size(lab_base):
    return measure_model(AutoConfig.from_pretrained(lab_base))


def made(size, *flags, gpus=1, problems=64):
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true", *flags])
    return forecast(recipe, size, Machines(GPUS["H100"], gpus, "none"), LENGTHS, 15, problems, 8)


def test_a_step_trains_on_what_every_gpu_accumulates_and_draws_it_once_per_iteration(lab_size):
    batch = ["--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "4"]
    assert made(lab_size, *batch).rollouts == 64
    assert made(lab_size, *batch, gpus=8).rollouts == 512
    assert made(lab_size, *batch, "--num_iterations", "2", gpus=8).rollouts == 256


def test_epochs_become_steps(lab_size):
    flags = ["--max_steps", "-1", "--num_train_epochs", "3", "--per_device_train_batch_size", "16"]
    assert made(lab_size, *flags, problems=64).steps == 3 * 64 * 8 // 16


def test_drawing_for_several_updates_at_once_costs_each_its_share(lab_size):
    flags = ["--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "2"]
    alone, four = made(lab_size, *flags), made(lab_size, *flags, "--steps_per_generation", "8")
    assert four.rollout_seconds < alone.rollout_seconds
    assert four.update_seconds == pytest.approx(alone.update_seconds * 10 / 8)  # and the old log-probabilities


def test_vllm_that_sleeps_leaves_its_share_to_the_update(lab_size):
    vllm = ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", "0.3"]
    awake, asleep = made(lab_size, *vllm), made(lab_size, *vllm, "--vllm_enable_sleep_mode", "true")
    assert {"activations", "vLLM's share"} <= set(awake.memory)
    assert "activations" not in asleep.memory
    assert asleep.bytes < awake.bytes


def test_an_engine_draws_no_more_at_once_for_the_monitor_than_for_training(lab_size):
    assert "max_num_seqs=args.per_device_train_batch_size" in inspect.getsource(GRPOTrainer)
    vllm = ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", "0.3"]
    few, many = (
        made(lab_size, *vllm, "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", count)
        for count in ("2", "16")
    )
    samples, waves = 8 * 64, 8 * 64 // 16
    assert few.samples == many.samples == samples
    assert few.measure_seconds > 0.9 * waves / (samples // 128) * many.measure_seconds


def test_the_layout_is_the_recipes():
    recipe = parse_recipe(["--config", "models/dapo-7b", "--use_cpu", "true"])
    layout = layout_of(recipe, Machines(GPUS["H100"], 8, "zero3"), 1000)
    assert (layout.half, layout.weight_bytes, layout.moments_bytes, layout.reference) == (True, 2, 8, False)
    assert (layout.micro_batch, layout.tokens, layout.vllm_share) == (4, 4072, 0.4)


@pytest.mark.parametrize(
    ("flags", "copies"),
    [
        (["--beta", "0"], 1),
        (["--beta", "0.1"], 0),
        (["--beta", "0", "--monitor_every", "0"], 0),
        (["--beta", "0", "--monitor_temperature", "0.6"], 0),  # no KL is measured, so no base is needed
        (["--beta", "0", "--use_peft", "true"], 0),
        (["--beta", "0.1", "--explorer", "reference_reset", "--explorer.every", "10"], 1),
        (["--beta", "0", "--explorer", "anchor", "--monitor_every", "0"], 1),
        (["--beta", "0", "--explorer", "rehearsal", "--monitor_every", "0"], 0),
        (["--beta", "0", "--explorer", "tilt", "--monitor_every", "0"], 1),
        (["--beta", "0.1", "--explorer", "tilt"], 0),
        (["--beta", "0", "--explorer", "pass_at_k", "pkpo"], 1),  # training refuses these two
    ],
)
def test_the_base_is_copied_where_the_monitor_or_an_explorer_needs_it_and_no_reference_is_it(flags, copies):
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true", *flags])
    assert layout_of(recipe, Machines(GPUS["H100"], 8, "zero2"), 1000).base_copy == copies


ANCHOR = ["--beta", "0", "--explorer", "anchor", "--explorer.problems", "4", "--explorer.k", "4"]


@pytest.mark.parametrize(
    "flags", [["--beta", "0"], ["--beta", "0.1"], ["--beta", "0", "--monitor_temperature", "0.6"], ANCHOR]
)
def test_a_run_copies_the_base_as_often_as_forecast(flags, tmp_path, monkeypatch):
    from offleash.callbacks.policy.frozen_base import FrozenBase
    from offleash.train.grpo import train

    loaded, load = [], FrozenBase._load
    monkeypatch.setattr(FrozenBase, "_load", lambda base: loaded.append(base) or load(base))
    small = ["--train_args", '{"n": 32, "split": "train"}', "--probe_args", '{"n": 4, "strict": true}']
    words = ["--output_dir", str(tmp_path / "run"), "--max_steps", "1", "--monitor_k", "4", *small, *flags]
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true", *words])
    train(recipe)
    assert layout_of(recipe, Machines(GPUS["H100"], 1, "none"), 1000).base_copy == len(loaded)


def test_without_vllm_the_monitors_batch_counts_as_far_as_there_are_samples():
    flags = ["--monitor_batch_size", "2048", "--monitor_k", "64", "--monitor_max_new_tokens", "100"]
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true", *flags])
    machines = Machines(GPUS["H100"], 2, "none")
    assert layout_of(recipe, machines, 10).monitor_tokens == 2048 * 110
    assert layout_of(recipe, machines, 10, probes=3).monitor_tokens == 96 * 110
    for off in (["--use_vllm", "true"], ["--monitor_every", "0"]):
        recipe = parse_recipe(["--config", "lab", "--use_cpu", "true", *flags, *off])
        assert layout_of(recipe, machines, 10).monitor_tokens == 0


def test_longer_samples_of_the_monitor_take_it_longer(lab_size):
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true"])
    where = (recipe, lab_size, Machines(GPUS["H100"], 1, "none"), LENGTHS, 15, 64, 8)
    plain, longer = forecast(*where), forecast(*where, monitor_lengths=Lengths(10, 40, 80))
    assert plain.measure_seconds < longer.measure_seconds
    assert plain.rollout_seconds == longer.rollout_seconds


def test_what_follows_from_unknown_numbers_is_unknown(lab_size):
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true", "--max_steps", "-1"])
    found = forecast(recipe, lab_size, Machines(GPUS["H100"], 1, "none"), LENGTHS, 15, None, None)
    assert (found.steps, found.measurements, found.samples) == (None, None, None)
    assert (found.training_seconds, found.monitoring_seconds) == (None, None)


def test_trl_and_deepspeed_still_do_what_was_read_in_them():
    from trl import GRPOTrainer
    from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    assert TOKEN_CHUNK_SIZE * _CHUNKED_LOGPROB_CHUNK_SIZE == LOGIT_TILE
    text = " ".join(inspect.getsource(GRPOTrainer._generate_and_score_completions).split())
    assert (
        "if self.args.gradient_accumulation_steps % generate_every != 0 or ( self.use_vllm and "
        "self.vllm_importance_sampling_correction ):" in text
    )
    zero = pytest.importorskip("deepspeed.runtime.zero.config")
    assert zero.DeepSpeedZeroConfig().max_live_parameters == LIVE_PARAMETERS
