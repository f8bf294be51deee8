"""Cost of a large comparison: two pools of 25 million samples are written, reopened and compared. Seconds and memory.

    python bench/pools.py                        # 3052 problems x 8192 samples in each pool: 50 million samples
    python bench/pools.py --samples 1000000      # the same, smaller

Each stage runs in its own process, so that its peak memory (ru_maxrss) is its own. The samples are synthetic: success
rates from a Beta distribution that resembles the paper's math pools, wrong answers with a long tail, a few samples
without an answer, lengths and log-probabilities as an engine would store them, no completions. `compare` is all of
`offleash compare`: dynamics at both levels and thresholds, noise, pass@k at all powers of two, intervals, entropies,
sensitivity to the threshold, the posterior, examples, and the JSON and HTML files.
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from offleash.eval.commands.compare import main as compare_main
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem

K, PART_ROWS, WRONG = 8192, 200_000, 4000


def rates(problems: int) -> tuple[np.ndarray, np.ndarray]:
    """Success rates of base and policy: the policy is sharper and loses some of the rare successes."""
    rng = np.random.default_rng(1)
    base_p = rng.beta(0.35, 0.3, problems)
    policy_p = np.clip(base_p**0.6 + rng.normal(0, 0.02, problems), 0, 1)
    lost_p = (base_p < 0.01) & (rng.random(problems) < 0.6)
    return base_p, np.where(lost_p, 0.0, policy_p)


def write(folder: Path, rate_p: np.ndarray, k: int, seed: int) -> None:
    problems = [Problem(f"problem-{i:05d}", f"question {i}", str(i)) for i in range(len(rate_p))]
    pool = make_pool(folder, None, k, problems, task="synthetic", temperature=0.6, top_p=0.95, max_new_tokens=32768)
    rng = np.random.default_rng(seed)
    ids, statuses = pa.array([p.id for p in problems]), pa.array(["ok", "no_answer"])
    words = pa.array([str(i) for i in range(max(len(problems), 10_000) + WRONG + 1)])
    step = max(1, PART_ROWS // len(problems))
    for start in range(0, k, step):
        draws = min(step, k - start)
        problem_r = np.tile(np.arange(len(problems), dtype=np.int32), draws)
        correct_r = rng.random(problem_r.size) < rate_p[problem_r]
        silent_r = ~correct_r & (rng.random(problem_r.size) < 0.05)
        wrong_r = np.minimum(rng.zipf(1.5, problem_r.size), WRONG)
        code_r = np.where(correct_r, problem_r, (problem_r + wrong_r) % len(words)).astype(np.int32)
        tokens_r = rng.integers(200, 8000, problem_r.size, dtype=np.int32)
        pool.append(
            {
                "problem_id": pa.DictionaryArray.from_arrays(problem_r, ids),
                "index": np.repeat(np.arange(start, start + draws, dtype=np.int32), len(problems)),
                "answer": pa.DictionaryArray.from_arrays(pa.array(code_r, mask=silent_r), words),
                "correct": correct_r,
                "status": pa.DictionaryArray.from_arrays(silent_r.astype(np.int32), statuses),
                "tokens": tokens_r,
                "logprob": np.round(-0.2 * tokens_r * rng.random(problem_r.size), 3),
                "entropy": np.round(rng.random(problem_r.size), 4),
            }
        )


def reopen(*folders: Path) -> None:
    for folder in folders:
        assert Pool.open(folder).is_complete


def compare(base: Path, policy: Path, out: Path) -> None:
    argv = [str(base), str(policy), "--json", str(out / "report.json"), "--html", str(out / "report.html")]
    with contextlib.redirect_stdout(io.StringIO()):
        assert compare_main(argv) == 0


def in_child(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds and peak memory in GiB of `work` in its own process."""
    sys.stdout.flush()
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        work()
        sys.stdout.flush()
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"a stage failed (status {status})")
    return time.perf_counter() - start, usage.ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3052 * K, help="per pool (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to keep the pools (default: a temporary folder)")
    options = parser.parse_args()
    problems = min(3052, max(1, options.samples // 64))
    k = max(1, options.samples // problems)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        names = ("base", "policy")
        stages: dict[str, Callable[[], None]] = {}
        for seed, (name, rate_p) in enumerate(zip(names, rates(problems), strict=True)):
            if not (folder / name / "pool.json").exists():
                stages[f"write {name}"] = lambda n=name, r=rate_p, s=seed: write(folder / n, r, k, s)
        stages["reopen"] = lambda: reopen(folder / "base", folder / "policy")
        stages["compare"] = lambda: compare(folder / "base", folder / "policy", folder)
        costs = {name: in_child(work) for name, work in stages.items()}
        size = sum(path.stat().st_size for name in names for path in (folder / name).iterdir())
    print(f"\n2 pools of {problems} problems x {k} draws = {2 * problems * k / 1e6:.1f} million samples, "
          f"{size / 2**30:.2f} GiB on disk")  # fmt: skip
    for name, (seconds, memory) in costs.items():
        print(f"  {name:14}{seconds:8.1f} s{memory:8.2f} GiB")


if __name__ == "__main__":
    main()
