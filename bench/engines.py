"""Throughput of the vLLM engine against raw `LLM.generate` on the same requests: tokens per second and their ratio.

    python bench/engines.py                                  # the embedded model
    python bench/engines.py --model FOLDER --problems 16 --k 64 --max-new-tokens 128

All use one engine in one process and take turns, in alternating order, after a warm-up. "raw" gives vLLM the same
prompts, seeds and parameters all at once; "raw, text only" is the same without log-probabilities and with vLLM's own
decoding. "one request" is what one would write first: text only, n = k for each problem and no seed, so that nothing
could be drawn again after a crash. "ours" includes everything but loading and fingerprinting the model: scheduling of
requests, decoding, verification, the check for repeated samples and a pool on disk.
"""

import argparse
import dataclasses
import runpy
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from offleash import recipes
from offleash.eval.engines.base import Request
from offleash.eval.engines.model import resolve_model
from offleash.eval.engines.prompts import prepare_prompts
from offleash.eval.engines.vllm_engine import VllmEngine
from offleash.eval.engines.vllm_seam import on_cpu
from offleash.eval.pool.fill import Fill
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Task
from offleash.eval.sampling import Sampling, sample_seed
from offleash.eval.tasks import load_task


class Bench:
    """One engine, one task, and four ways to draw the same samples."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.scratch, self.k = scratch, options.k
        self.source = resolve_model(_model(options.model, scratch), dtype=options.dtype)
        self.task: Task = load_task("countdown", split="probe", n=options.problems)
        self.prepared = prepare_prompts(self.task.problems, self.source.tokenizer)
        self.sampling = Sampling(max_new_tokens=options.max_new_tokens)
        # On a CPU it is the share of the machine's memory that the cache takes.
        room: dict[str, Any] = {"gpu_memory_utilization": 0.2} if on_cpu() else {}
        self.engine = VllmEngine(self.source, context=self.prepared.longest + options.max_new_tokens, **room)

    def pool(self, seed: int) -> Pool:
        return make_pool(
            self.scratch / f"{time.monotonic_ns()}",
            None,
            self.k,
            self.task.problems,
            task=self.task.name,
            task_version=self.task.version,
            template=self.prepared.template,
            model=self.source.name,
            weights=self.source.weights,
            **dataclasses.asdict(self.sampling),
            seed=seed,
            engine="vllm",
            dtype=self.source.dtype,
        )

    def requests(self, seed: int) -> list[Request]:
        pool = self.pool(seed)
        return [
            Request(p, self.prepared.prompts[p], start, size, sample_seed(seed, pool.problem_ids[p], start))
            for p, start, size in Ledger(pool).blocks(self.k, self.engine.block)
        ]

    def ours(self, seed: int) -> tuple[int, float]:
        pool = self.pool(seed)
        start = time.perf_counter()
        totals = Fill(pool, self.task, self.engine, self.prepared.prompts, self.sampling).run(progress=False)
        return totals.tokens, time.perf_counter() - start

    def raw(self, seed: int) -> tuple[int, float]:
        return self._generate(self.requests(seed), lambda params: params)

    def raw_text(self, seed: int) -> tuple[int, float]:
        return self._generate(self.requests(seed), _text_only)

    def one_request(self, seed: int) -> tuple[int, float]:
        def unseeded(params: Any) -> Any:
            params.seed = None
            return _text_only(params)

        return self._generate([Request(p, ids, 0, self.k, 0) for p, ids in enumerate(self.prepared.prompts)], unseeded)

    def _generate(self, requests: Sequence[Request], change: Callable[[Any], Any]) -> tuple[int, float]:
        start = time.perf_counter()
        prompts = [{"prompt_token_ids": request.prompt} for request in requests]
        params = [change(self.engine.params(request, self.sampling)) for request in requests]
        outputs = self.engine.llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return sum(len(one.token_ids) for output in outputs for one in output.outputs), seconds


def _text_only(params: Any) -> Any:
    params.logprobs, params.flat_logprobs, params.detokenize = None, False, True
    return params


def _model(name: str, scratch: Path) -> str:
    """The embedded model has heads of 24, which vLLM's kernels for CPUs do not know: there a wider equal stands in."""
    if name != "lab" or not on_cpu():
        return name
    runpy.run_path(str(Path(recipes.__path__[0]) / "lab" / "widen.py"))["widen"](scratch / "wide")
    return str(scratch / "wide")


def cpu_seconds() -> float:
    """CPU time of this process and vLLM's, which other programs on the machine hardly change."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def main(argv: Sequence[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--k", type=int, default=256)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options, Path(scratch))
        ways = {
            "raw": bench.raw,
            "raw, text only": bench.raw_text,
            "one request": bench.one_request,
            "ours": bench.ours,
        }
        for way in ways.values():
            way(-1)
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for repeat in range(options.repeats):
            order = list(ways) if repeat % 2 == 0 else list(reversed(ways))
            for name in order:
                before = cpu_seconds()
                tokens, seconds = ways[name](repeat)
                spent = cpu_seconds() - before
                rates[name].append((tokens / seconds, tokens / spent))
                print(f"{repeat} {name:16}{tokens:9} tokens{seconds:8.2f} s{spent:8.2f} CPU s", flush=True)
        bench.engine.close()
    print(f"\n{'median':16}{'tokens/s':>10}{'of raw':>9}{'per CPU s':>12}{'of raw':>9}")
    found: list[tuple[str, float]] = []
    for name, values in rates.items():
        wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
        to_raw = [(w / w0, c / c0) for (w, c), (w0, c0) in zip(values, rates["raw"], strict=True)]
        wall_ratio, cpu_ratio = (statistics.median(column) for column in zip(*to_raw, strict=True))
        print(f"{name:16}{wall:10.0f}{wall_ratio:9.3f}{cpu:12.0f}{cpu_ratio:9.3f}")
        found += [
            (f"vLLM: tokens/s of {name} against raw", wall_ratio),
            (f"vLLM: tokens per CPU second of {name} against raw", cpu_ratio),
        ]
    return [row for row in found if not row[0].endswith("of raw against raw")]


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    return main(["--repeats", "3"])


if __name__ == "__main__":
    main()
