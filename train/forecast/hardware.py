"""Devices: dense bf16 throughput, memory and its bandwidth, from the vendors' data sheets; the machines of a run."""

import os
from dataclasses import dataclass
from typing import Literal, NamedTuple

import psutil

from offleash.eval.errors import ConfigError

GIB = 2**30
CORE_FLOPS = 1e11
"""One CPU core in float32: two units of 8 multiply-adds per cycle, at 3 GHz."""
CPU_BANDWIDTH = 2e10
Sharding = Literal["none", "zero0", "zero1", "zero2", "zero3", "fsdp"]


class Pace(NamedTuple):
    """How much of a device's peak a run reaches, over all of its time: also while weights are copied or saved."""

    arithmetic: float
    """Of peak operations (MFU), by updates and prefill."""
    bandwidth: float
    """Of peak bandwidth, by generation."""
    step: float
    """Seconds of a decoding step besides reading: scheduling, kernel launches, communication."""


FAST, USUAL, SLOW = Pace(0.3, 0.5, 0.005), Pace(0.12, 0.3, 0.025), Pace(0.04, 0.2, 0.06)
"""What published runs reached: none was faster than FAST, none slower than SLOW (docs/real-models.md)."""


class Device(NamedTuple):
    name: str
    flops: float
    """Peak operations per second, dense, bf16 with float32 accumulation."""
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class Machines:
    device: Device
    gpus: int
    sharding: Sharding = "none"
    pace: Pace = USUAL

    @property
    def flops(self) -> float:
        """Operations per second that all GPUs together reach."""
        return self.gpus * self.device.flops * self.pace.arithmetic


GPUS: dict[str, Device] = {
    name: Device(name, teraflops * 1e12, gib * GIB, terabytes * 1e12)
    for name, teraflops, gib, terabytes in (
        ("B200", 2250, 179, 8.0),
        ("H200", 989, 140, 4.8),
        ("H100", 989, 79.6, 3.35),
        ("A100", 312, 79.3, 2.04),
        ("A100-40", 312, 39.4, 1.56),
        ("L40S", 362, 44.9, 0.864),
        ("A6000", 155, 47.5, 0.768),
        ("5090", 209, 31.8, 1.79),
        ("4090", 165, 24.0, 1.01),
        ("3090", 71, 24.0, 0.936),
        ("A10", 125, 22.5, 0.6),
        ("L4", 121, 22.5, 0.3),
    )
}


def find_device(name: str) -> Device:
    """A device by its case-insensitive name; `cpu` is that of this machine."""
    if name.lower() == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return Device("cpu", cores * CORE_FLOPS, psutil.virtual_memory().total, CPU_BANDWIDTH)
    if name.upper() not in GPUS:
        raise ConfigError(f"no GPU {name!r}; choose one of {', '.join(GPUS)} or cpu")
    return GPUS[name.upper()]
