"""The right weights in vLLM, for real on the CPU: tensor parallelism, the base in the middle of a run, adapters."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.pool.pool import Pool
from offleash.eval.scoring.exact import ExactUnits

RECORD_DRAWS = """
import json, os
from vllm import LLM
generate = LLM.generate
def recorded(self, *args, **kwargs):
    outputs = generate(self, *args, **kwargs)
    with open({folder!r} + "/draws-" + os.environ["RANK"], "a") as file:
        file.write(json.dumps([list(each.token_ids) for output in outputs for each in output.outputs]) + "\\n")
    return outputs
LLM.generate = recorded
"""
UNEVEN = """
import torch
from trl import GRPOTrainer
loss = GRPOTrainer._compute_loss
def uneven(self, *args, **kwargs):  # as dropout on a GPU: by the width of a process's own rollouts
    torch.rand(1 + self.accelerator.process_index)
    return loss(self, *args, **kwargs)
GRPOTrainer._compute_loss = uneven
"""
MERGED_BY_TRL = """
from offleash.callbacks.policy import trl_weights
trl_weights.engine_weights = lambda generation: type(generation)._iter_named_params(generation)
"""
LORA = {"use_peft": "true", "lora_r": 8, "lora_target_modules": "all-linear", "dtype": "bfloat16"}


def samples(pool: Path) -> list[dict[str, Any]]:
    return Pool.open(pool).read(["problem_id", "index", "completion"]).to_pylist()


def served(folder: Path, read_scalars: Any) -> dict[int, float]:
    return dict(read_scalars(folder)["monitor/served_logp_difference"])


@pytest.mark.slow
def test_with_tensor_parallelism_the_processes_of_an_engine_draw_the_same_and_what_the_model_would(
    colocated: dict[str, Any], launch_patched: Any, tmp_path: Path, read_scalars: Any
) -> None:
    probe = {"probe_args": '{"split": "probe", "n": 9, "strict": true}', "monitor_exact": "true", "monitor_k": 64}
    settings = {"vllm_tensor_parallel_size": 2, "max_steps": 2, **probe, **colocated}
    patch = RECORD_DRAWS.format(folder=str(tmp_path))
    done = launch_patched(tmp_path / "run", patch, "cpu_two_processes", **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    draws = [(tmp_path / f"draws-{rank}").read_text() for rank in (0, 1)]
    assert draws[0] == draws[1]
    assert max(served(tmp_path / "run", read_scalars).values()) < 1e-5
    for step in (0, 2):
        pool = Pool.open(tmp_path / "run" / "pools" / f"step-{step:06d}")
        units = ExactUnits.load(tmp_path / "run" / "exact" / f"step-{step:06d}.npz")
        hits, p = pool.hits(), units.problem_probabilities()
        assert pool.is_complete
        assert abs(hits.correct_p.sum() - (hits.n_p * p).sum()) < 4 * (hits.n_p * p * (1 - p)).sum() ** 0.5
    texts = {row["completion"] for row in samples(tmp_path / "run" / "pools" / "step-000000")}
    assert len(texts) > 50


@pytest.mark.slow
def test_random_numbers_that_one_process_takes_in_training_do_not_part_those_of_an_engine(
    colocated: dict[str, Any], launch_patched: Any, tmp_path: Path
) -> None:
    settings = {"vllm_tensor_parallel_size": 2, "max_steps": 3, "monitor_every": 0}
    patch = RECORD_DRAWS.format(folder=str(tmp_path)) + UNEVEN
    done = launch_patched(tmp_path / "run", patch, "cpu_two_processes", **settings, **colocated)
    assert done.returncode == 0, done.stderr[-4000:]
    draws = [(tmp_path / f"draws-{rank}").read_text().splitlines() for rank in (0, 1)]
    assert len(draws[0]) >= 3
    assert draws[0] == draws[1]


@pytest.mark.slow
def test_a_base_drawn_on_a_resume_under_zero3_is_the_one_drawn_at_the_start(
    colocated: dict[str, Any], launch: Any, tmp_path: Path
) -> None:
    first = launch(tmp_path / "run", "cpu_zero3", max_steps=2, **colocated)
    assert first.returncode == 0, first.stderr[-4000:]
    (tmp_path / "base-pools").rename(tmp_path / "first")
    again = {"max_steps": 4, "resume": "true", "allow": "max_steps", **colocated}
    done = launch(tmp_path / "run", "cpu_zero3", **again)
    assert done.returncode == 0, done.stderr[-4000:]
    (ours,), (theirs,) = ((tmp_path / name).iterdir() for name in ("base-pools", "first"))
    assert ours.name == theirs.name
    assert samples(ours) == samples(theirs)


@pytest.mark.slow
def test_fifty_steps_of_lora_in_bfloat16_move_no_bit_of_the_base_and_serve_the_policy(
    colocated: dict[str, Any], launch: Any, tmp_path: Path, read_scalars: Any
) -> None:
    settings = {"max_steps": 50, "monitor_every": 25, "save_steps": 25, **LORA, **colocated}
    done = launch(tmp_path / "run", **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    differences = served(tmp_path / "run", read_scalars)
    assert len(differences) == 50
    assert max(differences.values()) < 0.05
    steps = json.loads((tmp_path / "run" / "support.json").read_text())["steps"]
    assert set(steps) == {"0", "25", "50"}
    assert steps["50"]["monitor/kl_base_k1"] > 10 * abs(steps["0"]["monitor/kl_base_k1"])

    shutil.rmtree(tmp_path / "base-pools")  # then the base is the policy without its adapter, through the engine
    more = {**settings, "max_steps": 52, "resume": "true", "allow": "max_steps"}
    resumed = launch(tmp_path / "run", **more)
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    (base,) = (tmp_path / "base-pools").iterdir()
    assert samples(base)
    start, later = (Pool.open(each).hits() for each in (tmp_path / "run" / "pools" / "step-000000", base))
    assert abs(int(start.correct_p.sum()) - int(later.correct_p.sum())) < 4 * (2 * start.n_p.sum() / 4) ** 0.5


@pytest.mark.slow
def test_a_sync_that_merges_in_place_is_found_out_at_the_next_measurement(
    colocated: dict[str, Any], launch_patched: Any, tmp_path: Path
) -> None:
    done = launch_patched(tmp_path / "run", MERGED_BY_TRL, max_steps=8, monitor_every=4, **LORA, **colocated)
    assert done.returncode != 0
    (line,) = [text for text in done.stderr.splitlines() if "offleash: error:" in text]
    assert "the frozen base has changed by step 4" in line
    assert "base_layer.weight" in line
