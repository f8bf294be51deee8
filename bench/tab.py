"""Time of the Support tab on a large run: 500 problems x 100 steps, 64 samples each. First paint and cells, in seconds.

    python bench/tab.py                       # writes 3.2 million samples first: about 2 minutes on 2 cores
    python bench/tab.py --folder /tmp/tab     # keeps the run, and finds it again
    python bench/tab.py --batch 256           # pools of 125 parts each, as one GPU writes them by default

A real TensorBoard serves a run whose pools hold synthetic samples with completions: 2 to 12 correct answers a problem,
three spellings each, rates that sharpen over the steps. Each time is that of a process that has read nothing yet
(cold), or of the same request again (warm); the operating system has the files in memory. With Playwright and Chromium
(`pip install offleash[browser]`) a browser opens the tab, and the time until it shows the verdict and the map is
counted from the start of TensorBoard's own page, and from the start of the tab's.
"""

import argparse
import gzip
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from offleash.callbacks import tags
from offleash.callbacks.summary import path_from, write_record
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem

K, SPELLINGS, TEXTS, LENGTH = 64, 3, 500, 600
PLUGIN = "data/plugin/offleash_support"


def write_run(folder: Path, problems: int, steps: int, batch: int) -> None:
    """`folder/run` with its pools, and `folder/base-pools/base`."""
    rng = np.random.default_rng(0)
    answers = [tuple(f"{i}+{j}" for j in range(int(rng.integers(2, 13)))) for i in range(problems)]
    asked = [Problem(f"problem-{i:04d}", f"Question {i}: reach {i}", answers[i][0]) for i in range(problems)]
    words = np.array(["so", "then", "we", "add", "and", "get", "the", "sum", "wait", "check", "again", "carry"])
    texts = [" ".join(rng.choice(words, LENGTH // 4)) for _ in range(TEXTS)]
    rates = [rng.dirichlet(np.full(len(listed) + 1, 0.4)) for listed in answers]
    fill(make_pool(folder / "base-pools" / "base", None, K, asked, answers), answers, rates, texts, rng, batch)
    history: dict[int, dict[str, float]] = {}
    for step in range(0, 10 * steps, 10):
        sharp = [rate ** (1 + step / 400) for rate in rates]
        where = folder / "run" / "pools" / f"step-{step:06d}"
        fill(make_pool(where, None, K, asked, answers), answers, [r / r.sum() for r in sharp], texts, rng, batch)
        history[step] = {metric.tag: float(rng.random()) for metric in tags.METRICS if "{" not in metric.tag}
        history[step] |= {f"pass_at_k/{2**i}": (i + 1) / 8 for i in range(7)}
        print(f"\rwriting: step {step}", end="", flush=True)
    print()
    base = path_from(folder / "run", folder / "base-pools" / "base")
    record = {"k": K, "token_entropy": "entropy/token_T1", "base_pool": base, "base": history[0], "steps": history}
    write_record(folder / "run", record)


def fill(
    pool: Pool, answers: list[tuple[str, ...]], rates: list[np.ndarray], texts: list[str], rng: Any, batch: int
) -> None:
    """In blocks of 8 draws of every problem, `batch` rows a part, as the monitor does it."""
    words = pa.array([word for listed in answers for word in (*listed, "0")])
    spelled = pa.array([f"{word}{' ' * i}" for word in words.to_pylist() for i in range(SPELLINGS)])
    start_p = np.cumsum([0, *(len(listed) + 1 for listed in answers[:-1])])
    drawn_pk = np.stack([rng.choice(len(rate), K, p=rate) for rate in rates])
    block, of_block = np.divmod(np.arange(K * len(answers)), 8 * len(answers))
    problem_r, index_r = of_block // 8, block * 8 + of_block % 8
    answer_r = drawn_pk[problem_r, index_r]
    correct_r = answer_r < np.array([len(listed) for listed in answers])[problem_r]
    word_r = (start_p[problem_r] + answer_r).astype(np.int32)
    spelling_r = (word_r * SPELLINGS + rng.integers(SPELLINGS, size=len(word_r))).astype(np.int32)
    text_r = pa.array(texts).take(pa.array(rng.integers(TEXTS, size=len(word_r))))
    numbers = pa.array(np.arange(len(word_r))).cast(pa.string())
    columns = {
        "problem_id": pa.DictionaryArray.from_arrays(problem_r.astype(np.int32), pa.array(pool.problem_ids)),
        "index": pa.array(index_r.astype(np.int32)),
        "answer": pa.DictionaryArray.from_arrays(word_r, words),
        "spelling": pa.DictionaryArray.from_arrays(spelling_r, spelled),
        "correct": pa.array(correct_r),
        "status": pa.DictionaryArray.from_arrays(np.zeros(len(word_r), np.int32), pa.array(["ok"])),
        "tokens": pa.array(np.full(len(word_r), LENGTH // 4, np.int32)),
        "completion": pc.binary_join_element_wise(text_r, numbers, " "),
    }
    for start in range(0, len(word_r), batch):
        pool.append({name: column[start : start + batch] for name, column in columns.items()})


class Board:
    """TensorBoard in a process of its own."""

    def __init__(self, logdir: Path) -> None:
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0"]
        self.process = subprocess.Popen([*command, "--load_fast", "false"], stderr=log)
        self.process_info = psutil.Process(self.process.pid)
        self.address = ""
        while not self.address and self.process.poll() is None:
            time.sleep(0.1)
            log.seek(0)
            found = [word for word in log.read().split() if word.startswith("http://localhost:")]
            self.address = found[0] if found else ""
        if not self.address:
            raise SystemExit("TensorBoard did not start")

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def cpu(self) -> float:
        """Seconds of CPU that the server has used: what a busy machine does not change."""
        used = self.process_info.cpu_times()
        return used.user + used.system

    def get(self, route: str, **query: Any) -> tuple[float, int, Any]:
        """Seconds, bytes over the wire, and the answer."""
        url = f"{self.address}{PLUGIN}/{route}?{urllib.parse.urlencode(query)}"
        start = time.perf_counter()
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})) as reply:
            packed = reply.read()
        seconds = time.perf_counter() - start
        text = gzip.decompress(packed) if reply.headers.get("Content-Encoding") == "gzip" else packed
        return seconds, len(packed), json.loads(text)


def tell(name: str, seconds: float, note: str = "") -> None:
    print(f"  {name:44}{seconds:8.3f} s   {note}".rstrip(), flush=True)


def served(folder: Path) -> None:
    """The routes, asked as the page does."""
    with Board(folder) as board:
        seconds, size, runs = board.get("runs")
        run = runs[0]["name"]
        tell("runs, cold", seconds, f"{size / 1e3:.0f} kB")
        for level in ("answer", "problem", "spelling"):
            cpu = board.cpu()
            seconds, size, grid = board.get("grid", run=run, level=level)
            tell(
                f"grid of {level}s, first answer", seconds, f"{len(grid['steps'])} steps, CPU {board.cpu() - cpu:.2f} s"
            )
            while grid["waiting"]:
                more, size, grid = board.get("grid", run=run, level=level)
                seconds += more
            note = f"{size / 1e3:.0f} kB, {len(grid['rows'])} rows, CPU {board.cpu() - cpu:.2f} s"
            tell(f"grid of {level}s, all steps", seconds, note)
            tell(f"grid of {level}s, again", board.get("grid", run=run, level=level)[0])
        problems = [problem["id"] for problem in grid["problems"]]
        steps, cpu = runs[0]["sampled"], board.cpu()
        times = [board.get("cell", run=run, step=steps[-1 - i], problem=problems[-1 - 7 * i])[0] for i in range(20)]
        note = f"median {statistics.median(times):.3f} s, CPU {(board.cpu() - cpu) / 20:.3f} s each"
        tell("a cell (20 of other steps and problems): most", max(times), note)


def painted(folder: Path) -> None:
    """The page in a browser, on a server that has read nothing; skipped without Playwright or Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("  in a browser: not measured, needs offleash[browser]")
        return
    with Board(folder) as board, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1360, "height": 1000})
        start = time.perf_counter()
        page.goto(f"{board.address}#offleash_support")
        frame = None
        while frame is None:
            page.wait_for_timeout(20)
            frame = next((one for one in page.frames if one.query_selector("#verdict p")), None)
        tell("in a browser: verdict and charts", time.perf_counter() - start, "from the start of TensorBoard's page")
        marks = {}
        for name in ("charts drawn", "map drawn", "map complete"):
            frame.wait_for_function(f"performance.getEntriesByName('offleash: {name}').length", timeout=300_000)
            marks[name] = frame.evaluate(f"performance.getEntriesByName('offleash: {name}')[0].startTime") / 1000
        tell("  verdict and charts", marks["charts drawn"], "from the start of the tab's own page")
        tell("  the map, of the steps counted so far", marks["map drawn"], "the same")
        tell("  the map, of all steps", marks["map complete"], "the same")
        frame.evaluate("() => { document.querySelector('.map').scrollTop = 4000; }")
        took = frame.evaluate(
            """async () => {
              const box = document.querySelector(".map"), times = [];
              for (let i = 0; i < 60; i++) {
                box.scrollTop += 160;
                const start = performance.now();
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                times.push(performance.now() - start);
              }
              return times.sort((a, b) => a - b)[54] / 1000;
            }"""
        )
        tell("  scrolling the map: two frames, 9 of 10 below", took)
        chromium.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=2048, help="rows of a part (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to keep the run (default: a temporary folder)")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if not (folder / "run" / "support.json").exists():
            write_run(folder, options.problems, options.steps, options.batch)
        print(f"{options.problems} problems x {options.steps} steps x {K} samples, parts of {options.batch}:")
        served(folder)
        painted(folder)


if __name__ == "__main__":
    main()
