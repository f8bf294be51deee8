"""What the launcher was asked for and what actually runs: Accelerate may silently fall back to less.

Read against Accelerate 1.15 (`commands/launch.py`, `utils/launch.py`, `state.py`):

- `--cpu`, or a config without a distributed type, starts one process regardless of `--num_processes`.
- Processes that see no GPU and are not told to use the CPU do not join: each trains separately, in the same folder.
- FSDP is used only if the processes are on GPUs; on CPUs the branch is not reached and DDP runs.
- ACCELERATE_USE_CPU makes `AcceleratorState` skip DeepSpeed.

Also read against transformers 5.17 and trl 1.16: with FSDP's CPU_RAM_EFFICIENT_LOADING only rank 0 loads a model.
Accelerate sends the policy's weights to the other ranks, but `prepare_fsdp` under version 2 does not send those of a
frozen model.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import yaml
from accelerate import DistributedType, PartialState
from accelerate.commands.config.config_args import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.state import is_initialized
from transformers import TrainingArguments

from offleash.callbacks.policy.frozen_base import ZEROS
from offleash.eval.errors import ConfigError
from offleash.train.forecast.hardware import Sharding
from offleash.train.recipe.config import Recipe

LAUNCHERS = ("launch", "accelerate-launch", "accelerate.commands.launch", "accelerate/commands/launch.py")
UNSHARDED = (DistributedType.NO, DistributedType.MULTI_CPU)


def check_launch() -> None:
    """Raise ConfigError if less runs than was asked for. Call it once the process group exists."""
    state = PartialState()
    asked = _processes_asked_of_the_launcher() if state.num_processes == 1 else None
    found = fallback(os.environ, state.distributed_type, state.num_processes, asked, is_initialized())
    if found is not None:
        raise ConfigError(found)


def fallback(
    environ: Mapping[str, str], kind: DistributedType, processes: int, asked: int | None, final: bool
) -> str | None:
    """What is missing of what was asked for, None if nothing is.

    `asked` is the launcher's number of processes if known. `final` says that an Accelerator exists: before that, `kind`
    is not yet FSDP or DeepSpeed, and what it will be follows from Accelerate's own conditions.
    """
    launched = int(environ.get("WORLD_SIZE") or 1)
    if processes < launched:
        return (
            f"{launched} processes were launched and each would train separately, because there is no GPU: to train on "
            "CPUs add --use_cpu true"
        )
    if asked is not None and processes < asked:
        return (
            f"{asked} processes were requested and {processes} runs: `--cpu`, or an accelerate config without a "
            "distributed type, silently starts one; use recipes/accelerate/cpu_two_processes.yaml (CPU) or a config "
            "with distributed_type MULTI_GPU, FSDP or DEEPSPEED"
        )
    cpu = _true(environ, "ACCELERATE_USE_CPU")
    if _true(environ, "ACCELERATE_USE_DEEPSPEED") and (kind != DistributedType.DEEPSPEED if final else cpu):
        return "DeepSpeed was requested and is skipped because ACCELERATE_USE_CPU is set: unset ACCELERATE_USE_CPU"
    if _true(environ, "ACCELERATE_USE_FSDP") and (kind != DistributedType.FSDP if final else kind in UNSHARDED):
        return (
            f"FSDP was requested and {kind.value} would run, every process with the full model: FSDP needs GPUs; on "
            "CPUs use recipes/accelerate/cpu_two_processes.yaml or cpu_zero3.yaml"
        )
    return None


def sharding(training: TrainingArguments) -> str:
    """How the model states are sharded over the processes: none, zero0 to zero3, fsdp1 or fsdp2."""
    if training.deepspeed_plugin is not None:
        return f"zero{training.deepspeed_plugin.hf_ds_config.get_value('zero_optimization.stage', 0)}"
    if training.fsdp_plugin_args:
        return f"fsdp{training.fsdp_plugin_args['fsdp_version']}"
    if _true(os.environ, "ACCELERATE_USE_FSDP"):
        return f"fsdp{os.environ.get('FSDP_VERSION') or 1}"
    return "none"


def check_frozen_models(recipe: Recipe) -> None:
    """Raise ConfigError if the KL reference, or the monitor's copy of the base, would be zero on all ranks but one."""
    run, training, model = recipe
    copied = not model.use_peft and (training.beta > 0 or run.monitor_every > 0)
    if copied and sharding(training) == "fsdp2" and _true(os.environ, "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise ConfigError(ZEROS)


def read_accelerate_config(path: Path) -> tuple[Sharding, int]:
    """How an accelerate config shards the model over GPUs, and how many processes it starts."""
    try:
        values = yaml.safe_load(path.read_text())
        kind, processes = str(values["distributed_type"]), int(values["num_processes"])
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not an accelerate config: {error}") from error
    if kind == "DEEPSPEED":
        stages: dict[int, Sharding] = {0: "zero0", 1: "zero1", 2: "zero2", 3: "zero3"}
        return stages.get(values.get("deepspeed_config", {}).get("zero_stage"), "none"), processes
    return ("fsdp" if kind == "FSDP" else "none"), processes


def processes_asked(words: Sequence[str]) -> int | None:
    """`--num_processes` of an `accelerate launch` command line, or of its config file; None for any other command."""
    place = next((i for i, word in enumerate(words) if word.endswith(LAUNCHERS)), None)
    if place is None or not any("accelerate" in word for word in words[: place + 1]):
        return None
    arguments, _ = launch_command_parser().parse_known_args(list(words[place + 1 :]))
    if arguments.num_processes is not None:
        return int(arguments.num_processes)
    if arguments.config_file is None and (arguments.cpu or not Path(default_config_file).is_file()):
        return None
    return int(load_config_from_file(arguments.config_file).num_processes)


def _processes_asked_of_the_launcher() -> int | None:
    """Read from the parent's command line: the simple launcher does not put it into the environment."""
    try:
        parent = psutil.Process().parent()
        return processes_asked(parent.cmdline()) if parent is not None else None
    except (psutil.Error, OSError):
        return None


def _true(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() in ("1", "true", "yes", "on")
