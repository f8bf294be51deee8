"""Any engine on a Ray cluster, through Ray Data: one in each worker, while this process verifies and writes.

The driver stays the only one that writes to the pool: requests go out with their seeds, completions come back in any
order, and all that `pool.fill` promises holds as it does on one machine. Verification has processes of its own
and parts are written far faster than models draw, so that one driver serves hundreds of workers.

A worker that dies is replaced and its unfinished requests are sampled again, with the same seeds. Each request is one
task with one result: Ray expects a task that it runs again to return the same results in the same order, which several
results returned as they finish would not be. Read against Ray 2.60.
"""

import logging
import math
import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from offleash.eval.engines import find_engine
from offleash.eval.engines.base import Drawn, Request
from offleash.eval.engines.cluster.worker import Model, Worker
from offleash.eval.engines.model import ModelSource
from offleash.eval.engines.vllm_engine import QUEUED
from offleash.eval.errors import ConfigError, EngineError, first_line
from offleash.eval.sampling import Sampling

GO_ON = "Completed samples are kept, and the same command continues"
DEATHS = 4
"""How many workers, beyond all of them once, may die without a single answer: Ray itself would retry forever."""


class RayEngine:
    """Engines of that name in `workers` actors: by default one per GPU, without GPUs one per machine.

    `address` is a cluster's, or "" for what Ray finds by itself: RAY_ADDRESS, a cluster running here, or a new
    one on this machine alone. `options` are the engine's own.
    """

    def __init__(
        self,
        engine: str,
        source: ModelSource,
        *,
        context: int,
        address: str = "",
        workers: int | None = None,
        **options: Any,
    ) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"--ray-workers must be at least 1, got {workers}")
        self.name, self.block = engine, int(find_engine(engine).block)  # type: ignore[attr-defined]
        self.ray = import_ray()
        self.is_ours = _connect(self.ray, address)
        self.resources = _resources(self.ray, workers, options)
        self.workers: int = self.resources.pop("workers")
        self.at_once = _at_once(engine, self.block, options)
        self.arguments = (engine, Model.of(source), context)
        self.options = options
        self.sampling: Sampling | None = None

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn]:
        if sampling != self.sampling:
            self._start(sampling)
        waiting, under_way, done = iter(requests), dict[int, Request](), list[int]()
        while True:
            # Twice what the workers hold, so that they have work while a part is verified and written.
            new = list(islice(waiting, 2 * self.workers * self.at_once - len(under_way)))
            numbers = self.feed.add([pickle.dumps(request) for request in new], done)
            under_way |= dict(zip(numbers, new, strict=True))
            if not under_way:
                return
            done = []
            for number, answer in self._next_answers():
                if number in under_way:  # else of an earlier call that was not read to its end
                    yield _drawn(under_way.pop(number), pickle.loads(answer))
                done.append(number)

    def close(self) -> None:
        self._stop()
        if self.is_ours:
            self.ray.shutdown()

    def _stop(self) -> None:
        """Without this Ray Data goes on in a thread, and would start another Ray after the end of this one."""
        if self.sampling is not None:
            self.stream.close()

    def _start(self, sampling: Sampling) -> None:
        from ray.data import ActorPoolStrategy

        from offleash.eval.engines.cluster.feed import Feed

        self._stop()
        self.sampling, self.feed = sampling, Feed()
        answers = self.feed.dataset.map_batches(
            Worker,
            batch_size=None,
            batch_format="pyarrow",
            fn_constructor_args=(*self.arguments, sampling, self.options),
            fn_constructor_kwargs={
                "starts": self.feed.count_worker,
                "limit": 2 * self.workers + DEATHS,
                "folder": str(Path.cwd()),
            },
            compute=ActorPoolStrategy(
                size=self.workers,
                max_tasks_in_flight_per_actor=self.at_once,
                max_concurrent_calls_per_actor=self.at_once,
                enable_true_multi_threading=True,
            ),
            **self.resources,
        )
        self.stream: Any = iter(answers.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))

    def _next_answers(self) -> list[tuple[int, bytes]]:
        from ray.data.exceptions import SystemException

        try:
            table = next(self.stream)
        except StopIteration:
            raise EngineError(f"Ray ended the stream of completions. {GO_ON}") from None
        except (self.ray.exceptions.RayError, SystemException) as error:
            raise EngineError(f"Ray gave up: {_reason(error)}. {GO_ON}") from error
        return list(zip(table["number"].to_pylist(), table["answer"].to_pylist(), strict=True))


def _drawn(request: Request, answer: Any) -> Drawn:
    if isinstance(answer, str):
        raise EngineError(f"{answer}. {GO_ON}")
    return Drawn(request, answer)


def import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise ConfigError("--ray needs Ray on this machine and on the workers: pip install 'offleash[ray]'") from error
    return ray


def _connect(ray: Any, address: str) -> bool:
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
    context.target_max_block_size = 1  # every row is passed on at once
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


def _resources(ray: Any, workers: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """How many workers, and the share of the cluster that each gets."""
    total = ray.cluster_resources()
    cpus, gpus = int(total.get("CPU", 1)), int(total.get("GPU", 0))
    if not gpus:
        machines = sum(1 for node in ray.nodes() if node["Alive"])
        workers = workers or machines
        return {"workers": workers, "num_cpus": max(1, cpus // workers)}
    each = int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))
    if each > gpus:
        raise ConfigError(f"an engine on {each} GPUs does not fit a Ray cluster with {gpus}")
    return {"workers": workers or gpus // each, "num_gpus": each, "num_cpus": 1}


def _at_once(engine: str, block: int, options: dict[str, Any]) -> int:
    """Requests that a worker is given ahead of its answers: enough to keep its batch full."""
    option, default, queued = ("max_num_seqs", 256, QUEUED) if engine == "vllm" else ("batch_size", 64, 2)
    return max(2, math.ceil(queued * int(options.get(option, default)) / block))


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error, 300)}"
