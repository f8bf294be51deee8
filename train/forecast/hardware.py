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
EFFICIENCY = 0.3
"""Fraction of peak arithmetic (MFU) reached by updates and prefill."""
Sharding = Literal["none", "zero0", "zero1", "zero2", "zero3", "fsdp"]


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
    efficiency: float = EFFICIENCY

    @property
    def flops(self) -> float:
        """Operations per second that all GPUs together reach."""
        return self.gpus * self.device.flops * self.efficiency


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
