"""A launcher that falls back to less than it was asked for is refused; what runs as asked is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate import DistributedType

from offleash import recipes
from offleash.eval.errors import ConfigError
from offleash.train.preflight.launch import check_frozen_models, fallback, processes_asked, sharding
from offleash.train.recipe.config import Recipe, parse_recipe

CONFIGS = Path(recipes.__path__[0]) / "accelerate"
NO, GPUS, CPUS = DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU
DEEPSPEED, FSDP = DistributedType.DEEPSPEED, DistributedType.FSDP
ASK_DEEPSPEED, ASK_FSDP = {"ACCELERATE_USE_DEEPSPEED": "true"}, {"ACCELERATE_USE_FSDP": "true"}


@pytest.mark.parametrize(
    ("environ", "kind", "processes", "asked", "final", "refused"),
    [
        ({}, NO, 1, None, False, None),
        ({}, NO, 1, 1, False, None),
        ({}, NO, 1, 2, False, "2 processes were requested and 1 runs"),
        ({"WORLD_SIZE": "2"}, CPUS, 2, None, False, None),
        ({"WORLD_SIZE": "2"}, NO, 1, 2, False, "add --use_cpu true"),
        (ASK_DEEPSPEED, CPUS, 2, None, False, None),
        (ASK_DEEPSPEED, DEEPSPEED, 2, None, True, None),
        (ASK_DEEPSPEED, CPUS, 2, None, True, "DeepSpeed was requested"),
        ({**ASK_DEEPSPEED, "ACCELERATE_USE_CPU": "True"}, CPUS, 2, None, False, "unset ACCELERATE_USE_CPU"),
        (ASK_FSDP, GPUS, 8, None, False, None),
        (ASK_FSDP, FSDP, 8, None, True, None),
        (ASK_FSDP, GPUS, 8, None, True, "FSDP was requested and MULTI_GPU"),
        (ASK_FSDP, CPUS, 2, None, False, "FSDP was requested and MULTI_CPU"),
    ],
)
def test_less_than_was_asked_for_is_named(environ, kind, processes, asked, final, refused):
    found = fallback(environ, kind, processes, asked, final)
    assert (found is None) == (refused is None)
    assert refused is None or refused in found


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("python /env/bin/accelerate launch --cpu --num_processes 2 train.py --num_processes 9", 2),
        ("python -m accelerate.commands.launch --num_processes=3 -m offleash.train --config lab", 3),
        (f"python /env/bin/accelerate launch --config_file {CONFIGS}/cpu_zero3.yaml -m offleash.train", 2),
        ("python /env/bin/accelerate launch --cpu train.py", None),
        ("python /env/bin/torchrun --nproc_per_node 2 train.py", None),
        ("bash launch --num_processes 2", None),
        ("", None),
    ],
)
def test_the_launchers_command_line_says_how_many_processes_were_asked_for(line, asked):
    assert processes_asked(line.split()) == asked


def lab(*words: str) -> Recipe:
    return parse_recipe(["--config", "lab", "--use_cpu", "true", *words])


def test_how_states_are_divided_is_read_off_the_launcher(monkeypatch):
    assert sharding(lab().training) == "none"
    for name, value in {**ASK_FSDP, "FSDP_VERSION": "2"}.items():
        monkeypatch.setenv(name, value)
    assert sharding(lab().training) == "fsdp2"


@pytest.mark.parametrize(
    ("words", "environ", "refused"),
    [
        ((), {}, True),
        (("--beta", "0"), {}, True),  # the monitor has a copy of its own
        (("--beta", "0", "--monitor_every", "0"), {}, False),
        (("--use_peft", "true"), {}, False),
        ((), {"FSDP_VERSION": "1"}, False),
        ((), {"FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}, False),
        ((), {"ACCELERATE_USE_FSDP": "false"}, False),
    ],
)
def test_a_reference_that_would_be_zeros_under_fsdp2_is_refused(words, environ, refused, monkeypatch):
    asked = {**ASK_FSDP, "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true", **environ}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    recipe = lab(*words)
    if refused:
        with pytest.raises(ConfigError, match="set fsdp_cpu_ram_efficient_loading: false"):
            check_frozen_models(recipe)
    else:
        check_frozen_models(recipe)


SCRIPT = """
import sys
from accelerate import PartialState
from offleash.eval.errors import ConfigError
from offleash.train.preflight.launch import check_launch
state = PartialState(cpu="--use_cpu" in sys.argv)  # as TrainingArguments does
try:
    check_launch()
    said = f"RUNS {state.num_processes}"
except ConfigError as error:
    said = f"REFUSED {error}"
sys.stdout.write(said + "\\n")  # in one piece: two processes write to one pipe
"""


def launched(tmp_path: Path, *words: str, use_cpu: bool = True, **environ: str) -> set[str]:
    """The lines that the processes of a real `accelerate launch` print."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    line = [sys.executable, "-m", "accelerate.commands.launch", *words, str(script), *(["--use_cpu"] * use_cpu)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    done = subprocess.run(line, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return {text for text in done.stdout.splitlines() if text.startswith(("RUNS", "REFUSED"))}


def test_two_processes_asked_for_with_cpu_are_refused_as_they_would_be_one(tmp_path):
    (said,) = launched(tmp_path, "--cpu", "--num_processes", "2")
    assert said.startswith("REFUSED 2 processes")


@pytest.mark.slow
def test_one_process_and_two_that_join_are_not_refused(tmp_path):
    assert launched(tmp_path, "--config_file", str(CONFIGS / "one_process.yaml")) == {"RUNS 1"}
    two = ("--config_file", str(CONFIGS / "cpu_two_processes.yaml"), "--main_process_port", "0")
    assert launched(tmp_path, *two) == {"RUNS 2"}


@pytest.mark.slow
def test_two_processes_that_do_not_join_are_refused(tmp_path):
    two = ("--config_file", str(CONFIGS / "cpu_two_processes.yaml"), "--main_process_port", "0")
    (said,) = launched(tmp_path, *two, use_cpu=False)
    assert "--use_cpu true" in said


@pytest.mark.slow
def test_fsdp_on_cpus_is_refused_as_it_would_be_ddp(tmp_path):
    fsdp = ("--config_file", str(CONFIGS / "node_fsdp2.yaml"), "--num_processes", "2", "--main_process_port", "0")
    (said,) = launched(tmp_path, *fsdp)
    assert said.startswith("REFUSED FSDP was requested and MULTI_CPU")


@pytest.mark.slow
def test_deepspeed_is_refused_with_use_cpu_in_the_environment_and_runs_without(tmp_path):
    zero3 = ("--config_file", str(CONFIGS / "cpu_zero3.yaml"), "--main_process_port", "0")
    (said,) = launched(tmp_path, *zero3, ACCELERATE_USE_CPU="true")
    assert said.startswith("REFUSED DeepSpeed")
    assert launched(tmp_path, *zero3) == {"RUNS 2"}
