"""A recipe's numbers by hand, and what they were read from in TRL and DeepSpeed."""

import inspect

import pytest
from transformers import AutoConfig

from offleash.train.config import load_recipe
from offleash.train.cost import Lengths
from offleash.train.forecast import Machines, forecast, layout_of
from offleash.train.hardware import GPUS
from offleash.train.memory import LIVE_PARAMETERS, LOGIT_TILE
from offleash.train.model_size import measure_model

LENGTHS = Lengths(10, 10, 20)


@pytest.fixture(scope="module")
def lab_size(lab_base):
    return measure_model(AutoConfig.from_pretrained(lab_base))


def made(size, *flags, gpus=1, problems=64):
    recipe = load_recipe(["--config", "lab", "--use_cpu", "true", *flags])
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


def test_the_layout_is_the_recipes():
    recipe = load_recipe(["--config", "models/dapo-7b", "--use_cpu", "true"])
    layout = layout_of(recipe, Machines(GPUS["H100"], 8, "zero3"), 1000)
    assert (layout.half, layout.weight_bytes, layout.moments_bytes, layout.reference) == (True, 2, 8, False)
    assert (layout.micro_batch, layout.tokens, layout.vllm_share) == (4, 4072, 0.4)


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
