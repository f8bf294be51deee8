"""Sampling on Ray without a model: samples per second of two workers against one, and what they cost the driver.

    python bench/cluster.py                      # 20,000 samples of 600 characters, 2 ms to draw, 1 ms to verify
    python bench/cluster.py --wait 0             # workers, driver and Ray want all of this machine's cores
    python bench/cluster.py --chars 8600 --verify 0.3

An engine returns texts of a given length after waiting as for a GPU, and a verifier uses a given CPU time, so that
scheduling, verification and writing are measured. Three ways take turns on the same requests: one worker, two, and
two workers that leave verification and writing to the driver, which is then the limit. Loading is not counted. Beside
samples per second by the clock stand CPU milliseconds per sample of the driver and of the workers, which other programs
on the machine change less: with a driver that needs d and a worker that needs w, up to w / d workers are kept busy.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from offleash.eval.engines.base import Completion, Drawn, Request
from offleash.eval.engines.model import ModelSource, resolve_model
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.ray_fill import RayFill, RayWorkers
from offleash.eval.pool.ray_worker import Job
from offleash.eval.pool.testing import make_spec
from offleash.eval.problem import Problem, Verdict
from offleash.eval.sampling import Sampling
from offleash.eval.verify.health import Failures

os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own 15 would let the driver go first
PROBLEMS = 40
SAMPLING = Sampling(max_new_tokens=512)


class Texts:
    """An engine that returns texts of so many characters, each after so many milliseconds."""

    name, block = "texts", 16

    def __init__(self, source: ModelSource, *, context: int, chars: int, wait: float) -> None:
        self.rest = "so it follows that 2 + 3 = 5, and we go on. " * (chars // 44 + 1)
        self.chars, self.wait = chars, wait

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn]:
        for request in requests:
            numbers = np.random.default_rng(request.seed).integers(1 << 60, size=request.n)
            time.sleep(request.n * self.wait / 1000)
            texts = [f"{number} {self.rest}"[: self.chars] for number in numbers.tolist()]
            yield Drawn(request, [Completion(text, self.chars // 4, -50.0, "stop") for text in texts])

    def close(self) -> None: ...


class Slow:
    """A task whose verifier uses so many milliseconds of CPU time for a completion."""

    name, version = "slow", "1"

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.problems = [Problem(f"p{i}", f"{i}:", "yes") for i in range(PROBLEMS)]

    def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Verdict]:
        return [self._verdict(text) for text in completions]

    def correct_answers(self, problem: Problem) -> None:
        return None

    def _verdict(self, text: str) -> Verdict:
        end = time.thread_time() + self.milliseconds / 1000
        while time.thread_time() < end:
            hash(text)
        return Verdict(text[:18], text[0] == "1", "ok")


class Undivided(RayWorkers):
    """Workers that only draw."""

    def start(self, job: Job, sampling: Sampling) -> None:
        super().start(replace(job, task=None), sampling)


def spent() -> tuple[float, float]:
    """CPU seconds of this process and of Ray's workers below it."""
    me = psutil.Process()
    workers = [child for child in me.children(recursive=True) if "MapWorker" in " ".join(child.cmdline())]
    times = [sum(process.cpu_times()[:2]) for process in (me, *workers)]
    return times[0], sum(times[1:])


class Bench:
    def __init__(self, samples: int, chars: int, wait: float, milliseconds: float, folder: Path) -> None:
        self.k, self.task, self.folder = samples // PROBLEMS, Slow(milliseconds), folder
        self.options = {"context": 64, "chars": chars, "wait": wait}
        self.source = resolve_model("lab")

    def workers(self, kind: type[RayWorkers], count: int) -> RayWorkers:
        return kind(f"{Path(__file__).stem}:Texts", self.source, workers=count, **self.options)

    def fill(self, workers: RayWorkers, k: int) -> tuple[float, float, float]:
        """Samples per second; CPU milliseconds per sample of the driver, and of the workers."""
        spec = make_spec(self.task.problems, k, task=self.task.name, engine="texts")
        pool = Pool.create(self.folder / str(time.monotonic_ns()), spec, self.task.problems)
        fill = RayFill(pool, self.task, workers, [[1]] * PROBLEMS, SAMPLING, Failures())
        driver, others = spent()
        start = time.perf_counter()
        totals = fill.run(progress=False)
        seconds = time.perf_counter() - start
        after = spent()
        assert totals.samples == PROBLEMS * k
        return totals.samples / seconds, *(
            1e3 * (b - a) / totals.samples for a, b in zip((driver, others), after, strict=True)
        )


def measure(
    samples: int, chars: int, wait: float, milliseconds: float, repeats: int
) -> dict[str, list[tuple[float, float, float]]]:
    ways = {
        "one worker": (RayWorkers, 1),
        "two workers": (RayWorkers, 2),
        "two that only draw": (Undivided, 2),
    }
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(samples, chars, wait, milliseconds, Path(scratch))
        for repeat in range(repeats):
            for name in list(ways) if repeat % 2 == 0 else list(reversed(ways)):
                with closing(bench.workers(*ways[name])) as workers:
                    bench.fill(workers, 16)  # loads them
                    found[name].append(bench.fill(workers, bench.k))
                    print(f"{repeat} {name:20}" + "".join(f"{value:12.3f}" for value in found[name][-1]), flush=True)
    return found


def ratio(found: dict[str, list[tuple[float, float, float]]], name: str, of: str, column: int = 0) -> float:
    pairs = zip(found[name], found[of], strict=True)
    return statistics.median(one[column] / other[column] for one, other in pairs)


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    found = measure(20_000, 600, 2.0, 1.0, 1)
    cost = statistics.median(driver / workers for _, driver, workers in found["two workers"])
    return [
        ("Ray: samples/s of two workers against one", ratio(found, "two workers", "one worker")),
        ("Ray: samples/s of two workers against two that only draw", ratio(found, "two workers", "two that only draw")),
        ("Ray: the driver's CPU time per sample against a worker's", cost),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--chars", type=int, default=600)
    parser.add_argument("--wait", type=float, default=2.0, help="milliseconds that the engine waits for a sample")
    parser.add_argument("--verify", type=float, default=1.0, help="CPU milliseconds of a verdict")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':22}{'samples/s':>12}{'driver ms':>12}{'workers ms':>12}")
    found = measure(options.samples, options.chars, options.wait, options.verify, options.repeats)
    print()
    for name, values in found.items():
        print(f"{name:22}" + "".join(f"{statistics.median(column):12.3f}" for column in zip(*values, strict=True)))
    print(f"\ntwo workers are {ratio(found, 'two workers', 'one worker'):.2f}x one by the clock")


if __name__ == "__main__":
    main()
