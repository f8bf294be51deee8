"""Runs of the real command in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from offleash import recipes

RECIPES = Path(recipes.__path__[0])

SMALL = {
    "train_args": '{"split": "train", "n": 64}',
    "probe_args": '{"split": "probe", "n": 9}',
    "monitor_exact": "false",
    "per_device_train_batch_size": "16",
    "num_generations": "8",
    "learning_rate": "5e-4",
    "monitor_k": "8",
    "monitor_score_k": "4",
    "monitor_every": "2",
    "monitor_batch_size": "32",
    "save_steps": "2",
    "save_total_limit": "100",
    "use_cpu": "true",
}


def launch_line(
    folder: Path, processes: str | None = None, program: Sequence[str] = ("-m", "offleash.train"), **settings: Any
) -> list[str]:
    """The command a user types, on a small lab: `accelerate launch --config_file ... -m offleash.train ...`.

    Without `processes` the launcher is left out, which saves its start: it would run the same in one process.
    """
    flags = {**SMALL, "output_dir": str(folder), **{key: str(value) for key, value in settings.items()}}
    launcher = ["-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
    config = [str(RECIPES / "accelerate" / f"{processes}.yaml")]
    return [
        *[sys.executable, *([*launcher, *config] if processes else []), *program],
        *["--config", str(RECIPES / "lab.yaml")],
        *[word for key, value in flags.items() for word in (f"--{key}", value)],
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="session")
def launch_and_kill() -> Callable[..., None]:
    """Start the command and kill -9 it, children and all, as soon as a file exists."""

    def run(folder: Path, moment: Path, **settings: Any) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        line = launch_line(folder, **settings)
        process = subprocess.Popen(line, env=environment(), start_new_session=True, **quiet)
        deadline = time.monotonic() + 300
        while not moment.exists():
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline, f"{moment} never came"
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    return run


@pytest.fixture(scope="session")
def launch() -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(folder: Path, *args: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
        line = launch_line(folder, *args, **settings)
        return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=600)

    return run


@pytest.fixture(scope="session")
def launch_patched(tmp_path_factory, launch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, with something in it replaced before it starts."""
    script = tmp_path_factory.mktemp("patched") / "patched.py"
    tail = "\nimport sys\nfrom offleash.train.__main__ import main\nif __name__ == '__main__': sys.exit(main())\n"

    def run(folder: Path, patch: str, processes: str | None = None, **settings: Any) -> Any:
        script.write_text(patch + tail)
        return launch(folder, processes, [str(script)], **settings)

    return run


@pytest.fixture(scope="session")
def colocated(vllm_base: Path) -> dict[str, Any]:
    """Settings of a run with vLLM in the trainer's process."""
    vllm = {"config": RECIPES / "lab" / "vllm.yaml", "model_name_or_path": vllm_base}
    return {**vllm, "lr_scheduler_type": "constant"}


@pytest.fixture(scope="session")
def logged() -> Callable[[Path, int], Any]:
    """The trainer's own log in a run's checkpoint."""

    def read(folder: Path, step: int) -> Any:
        return json.loads((folder / f"checkpoint-{step}" / "trainer_state.json").read_text())["log_history"]

    return read


@pytest.fixture
def served() -> Callable[[Any, float], None]:
    """Let a trainer's rollouts come with log-probabilities as vLLM's do, here with one number for every token."""

    def make(trainer: Any, logp: float) -> None:
        class Served(type(trainer)):  # type: ignore[misc]
            def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
                self.use_vllm = False
                try:
                    ids, completions, mask, texts, _, *rest = super()._generate(prompts)
                finally:
                    self.use_vllm = True
                return ids, completions, mask, texts, [[logp] * len(row) for row in completions], *rest

        trainer.__class__, trainer.use_vllm = Served, True

    return make
