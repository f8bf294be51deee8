"""A Ray cluster, connected to: what is asked of Ray, and how its resources are shared among engines.

Read against Ray 2.60.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from offleash.eval.engines.vllm_engine import QUEUED
from offleash.eval.errors import ConfigError, first_line


def import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise ConfigError("--ray needs Ray on this machine and on the workers: pip install 'offleash[ray]'") from error
    return ray


def connect(ray: Any, address: str) -> bool:
    """True if the connection was opened here, and so must be closed here."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address} is for Ray's client: run on a machine of the cluster, --ray HOST:6379 or --ray auto"
        )
    _silence(ray)
    if ray.is_initialized():
        return False
    try:
        with _no_stderr():
            ray.init(address or None, log_to_driver=False, logging_level=logging.ERROR)
    # What Ray raises for an invalid address, no server, or another version of Ray or Python.
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        where = f"Ray at {address}" if address else "Ray"
        raise ConfigError(f"cannot connect to {where}: {first_line(error)}") from error
    return True


def _silence(ray: Any) -> None:
    """The terminal has a progress bar already; Ray's messages are in its own logs."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Ray Data's own actors make it complain in every run
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # a piece of work is passed on at once, and so is its result
    context.execution_no_progress_timeout_s = -1  # long completions, or a queue for machines, may take hours


@contextmanager
def _no_stderr() -> Iterator[None]:
    """For Ray's C++ half, which reports the log level that it was given past Python. Errors are raised all the same."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def resources_of(ray: Any, workers: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """How many workers, and the share of the cluster that each gets."""
    if workers is not None and workers < 1:
        raise ConfigError(f"--ray-workers must be at least 1, got {workers}")
    total = ray.cluster_resources()
    cpus, gpus = int(total.get("CPU", 1)), int(total.get("GPU", 0))
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not gpus:
        workers = workers or len(machines)
        return {"workers": workers, "num_cpus": max(1, cpus // workers)}
    each = int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))
    if each > gpus:
        raise ConfigError(f"an engine on {each} GPUs does not fit a Ray cluster with {gpus}")
    return {"workers": workers or gpus // each, "num_gpus": each, "num_cpus": _cpus_beside(machines, each)}


def _cpus_beside(machines: Sequence[Mapping[str, float]], gpus: int) -> int:
    """CPUs for each engine on so many GPUs, if engines fill the machines; as many as the one with the fewest has."""
    engines = [(int(machine.get("CPU", 0)), int(machine.get("GPU", 0)) // gpus) for machine in machines]
    return max(1, min((cpus // count for cpus, count in engines if count), default=1))


def capacity_of(engine: str, options: dict[str, Any]) -> tuple[int, int]:
    """Sequences that an engine runs at once, and how many it should be given so that its batch stays full."""
    option, default, queued = ("max_num_seqs", 256, QUEUED) if engine == "vllm" else ("batch_size", 64, 2)
    at_once = int(options.get(option, default))
    return at_once, queued * at_once


def reason_of(error: BaseException) -> str:
    """Ray wraps what a worker raised in errors of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error, 300)}"
