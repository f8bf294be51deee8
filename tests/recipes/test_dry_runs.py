"""Every recipe for a real model runs to its fourth step, monitored, on a tiny model, tiny data and two CPU cores.

The command is the recipe's own, with its accelerate config. All of its keys are kept but those in the tables here:
sizes, model, dataset and devices, and what a CPU cannot run, with the reason. A key that is added to a recipe is run.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from offleash import recipes
from offleash.train.recipe.config import parse_recipe, resolved
from tests.train.test_images import make_llava

pytestmark = pytest.mark.slow

RECIPES = Path(recipes.__path__[0])
MODELS = sorted((RECIPES / "models").glob("*.yaml"))

LAUNCH = {
    **{"prorl-1.5b": "node_zero2", "dapo-1.5b": "node_zero2", "dapo-7b": "node_zero3"},
    "qwen2.5-32b-dapo": "nodes_zero3",  # by way of recipes/launch/slurm.sh
}
"""The accelerate config of each recipe's command; one_gpu for all others."""

PROCESSES = {"one_gpu": 1, "node_zero2": 2, "node_zero3": 2, "nodes_zero3": 2}
"""Instead of 8 and 32; DeepSpeed on gloo."""

BYTES = {"node_zero2": 16, "node_zero3": 14, "nodes_zero3": 14}
"""Of a checkpoint, per parameter (train/forecast/disk.py)."""

SIZES = {
    **{"max_steps": 4, "save_steps": 4, "monitor_every": 2, "monitor_k": 6, "monitor_score_k": 2},
    **{"monitor_batch_size": 16, "max_completion_length": 18, "vllm_max_model_length": 128},
    **{"gradient_accumulation_steps": 2, "num_generations": 4, "vllm_gpu_memory_utilization": 0.02},
}
"""Besides these: warmup_steps, and steps_per_generation, which keeps the recipe's number of updates per rollout."""

LAB = '"numbers": 4, "max_number": 12, "max_target": 60, "min_solutions": 3, "strict": true'
COUNTDOWN = {
    "task": "countdown",
    "train_args": f'{{"split": "train", "n": 64, {LAB}}}',
    "probe_args": f'{{"split": "probe", "n": 4, {LAB}}}',
}
SHADES = {
    "task": "tests.train.test_images:Shades",
    "train_args": '{"split": "train"}',
    "probe_args": '{"split": "probe", "n": 4}',
}

ENGINE = {"use_vllm": ("false", "rollouts by transformers where vLLM is not installed; the other half of this test")}
NOT_ON_CPU: dict[str, dict[str, tuple[str, str]]] = {
    "qwen2.5-32b-dapo": {
        "vllm_enable_sleep_mode": ("false", "vLLM has no sleep mode on CPUs"),
        "vllm_tensor_parallel_size": ("2", "an engine spans both processes, not four GPUs"),
    },
}
"""Recipe -> key -> (value here, why). bf16, gradient checkpointing, sdpa, LoRA and ZeRO do run on CPUs."""


def changed(path: Path, model: Path, engine: str) -> dict[str, Any]:
    """The flags that differ from the recipe's, other than where it writes."""
    own, images = yaml.safe_load(path.read_text()), "-vl-" in path.stem
    values: dict[str, Any] = {**SIZES, **(SHADES if images else COUNTDOWN), "model_name_or_path": str(model)}
    values["per_device_train_batch_size"] = min(own["per_device_train_batch_size"], 8)
    if "steps_per_generation" in own:
        values["steps_per_generation"] = 2 * own["steps_per_generation"] // own["gradient_accumulation_steps"]
    if "warmup_steps" in own:
        values["warmup_steps"] = 1
    cannot = {**(ENGINE if engine == "transformers" else {}), **NOT_ON_CPU.get(path.stem, {})}
    return {**values, **{key: value for key, (value, _) in cannot.items()}, "use_cpu": "true"}


def run(path: Path, folder: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    config = LAUNCH.get(path.stem, "one_gpu")
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
    launcher += [str(RECIPES / "accelerate" / f"{config}.yaml")]
    if PROCESSES[config] > 1:
        launcher += ["--num_machines", "1", "--machine_rank", "0", "--num_processes", str(PROCESSES[config])]
    flags = {**values, "output_dir": folder, "disable_tqdm": "true"}
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    line = [*launcher, "-m", "offleash.train", "--config", str(path), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    root = RECIPES.parent  # where the module of SHADES is found
    return subprocess.run(line, env=environment, cwd=root, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_recipe_trains_and_is_measured_with_its_own_flags(path, engine, tmp_path, vllm_base, lab_base) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm")
        if not yaml.safe_load(path.read_text())["use_vllm"]:
            pytest.skip("the recipe does not use vLLM")
    model = make_llava(tmp_path / "llava", lab_base) if "-vl-" in path.stem else vllm_base
    values, folder = changed(path, model, engine), tmp_path / "run"
    done = run(path, folder, values)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]

    history = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    rows = [row for row in history if "loss" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(math.isfinite(row[key]) for row in rows for key in ("loss", "grad_norm"))
    assert any(row["grad_norm"] > 0 for row in rows)
    measured = json.loads((folder / "support.json").read_text())["steps"]
    assert list(measured) == ["0", "2", "4"]

    own, got = yaml.safe_load(path.read_text()), yaml.safe_load((folder / "recipe.yaml").read_text())
    meant = resolved(parse_recipe(["--config", str(path), "--use_cpu", "true"]))
    kept = sorted(set(own) - set(values) - {"output_dir"})
    assert {key: got[key] for key in kept} == {key: meant[key] for key in kept}
    if (launched := LAUNCH.get(path.stem, "one_gpu")) in BYTES:
        check_deepspeed(folder / "checkpoint-4", BYTES[launched])


def check_deepspeed(checkpoint: Path, bytes_per_parameter: int) -> None:
    """It adds up gradients in float32, and its checkpoint is as large as `offleash check` says."""
    states = checkpoint / "global_step4"
    config = torch.load(states / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", weights_only=False)["ds_config"]
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config["bf16"]["enabled"]
    weights = load_file(checkpoint / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    size = sum(file.stat().st_size for file in (*states.iterdir(), checkpoint / "model.safetensors"))
    assert size / sum(weight.numel() for weight in weights.values()) == pytest.approx(bytes_per_parameter, rel=0.05)


def test_the_tables_name_only_what_the_recipes_set() -> None:
    values = {path.stem: yaml.safe_load(path.read_text()) for path in MODELS}
    assert set(LAUNCH) | set(NOT_ON_CPU) <= set(values)
    for name, cannot in NOT_ON_CPU.items():
        assert set(cannot) <= set(values[name]), name
    for key in ("bf16", "gradient_checkpointing", "attn_implementation"):
        assert all(key in own for own in values.values()), key
