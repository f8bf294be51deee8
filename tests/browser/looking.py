"""Runs with real pools to look at, TensorBoard in a process of its own, and the tab's frame in a browser's page."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from offleash.callbacks.metrics import support_metrics
from offleash.callbacks.summary import path_from, write_record
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem
from offleash.eval.stats.passk import pass_at_k

K = 32
HOSTILE = "<img src=x onerror='parent.pwned=1'><script>parent.pwned=1</script>\x00\u202eesrever\u202c " + "long" * 2000
PROBLEMS = [
    Problem("sums-1", "1 + 1 =", "2"),
    Problem("sums-2", "2 + 2 =", "4"),
    Problem("</script><b>hostile</b>", f"{HOSTILE[:200]} =", "<i>6</i>"),
    *(Problem(f"more-{i}", f"{i} + {i} + 1 =", str(2 * i + 1)) for i in range(40)),
]
ANSWERS = [("1+1", "2+0"), ("4", "2*2"), ("<i>6</i>",), *((str(2 * i + 1),) for i in range(40))]


def is_far(url):
    return not url.startswith(("http://localhost:", "file:", "data:", "blob:", "about:"))


@contextmanager
def board(*flags, before=""):
    """TensorBoard in a process of its own; gives its address. `before`: code that runs first."""
    code = f"{before}\nfrom tensorboard import main; main.run_main()"
    command = [sys.executable, "-c", code, *map(str, flags), "--port", "0", "--reload_interval", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        for line in process.stderr:
            if "http://localhost:" in line:
                yield next(word for word in line.split() if word.startswith("http://localhost:"))
                break
        else:
            pytest.fail("TensorBoard did not start")
    finally:
        process.terminate()
        process.communicate()


def opened(page, address):
    """The tab's own frame, with its map complete."""
    page.goto(f"{address}#offleash_support" if "#" not in address else address)
    return frame_of(page)


def frame_of(page):
    for _ in range(600):
        found = next((frame for frame in page.frames if frame.query_selector("#verdict p")), None)
        if found:
            found.wait_for_function("performance.getEntriesByName('offleash: map complete').length", polling=200)
            return found
        page.wait_for_timeout(100)
    raise AssertionError("the tab did not open")


def fill(path, hits):
    """`hits[problem][answer]` samples of each answer; the others of the K are wrong."""
    pool = make_pool(path, problems=PROBLEMS, k=K, answers=ANSWERS)
    samples = []
    for problem, answers in zip(PROBLEMS, ANSWERS, strict=True):
        given = [answer for answer in answers for _ in range(hits.get(problem.id, {}).get(answer, 0))]
        for i in range(K):
            answer = given[i] if i < len(given) else None
            text = f"{problem.prompt} {answer or 'no idea'} {HOSTILE if 'hostile' in problem.id else ''}"
            status = "ok" if answer else "no_answer"
            spelling = f"{answer} " if i % 2 and answer else answer
            judged = (answer, answer is not None, status, "last line" if answer else "")
            samples.append(Sample(problem.id, i, *judged, tokens=3, completion=text, spelling=spelling))
    pool.append(samples)
    return pool


def hits_at(step):
    """1+1 is lost at 10, back at 20 and lost again at 30; 2*2 is gained; the hostile answer is lost in the end."""
    more = {f"more-{i}": {str(2 * i + 1): 3 + i % 20} for i in range(40)}
    return more | {
        "sums-1": {"1+1": {0: 20, 10: 0, 20: 9}.get(step, 0), "2+0": 4},
        "sums-2": {"4": 20, "2*2": 12 if step >= 20 else 0},
        PROBLEMS[2].id: {"<i>6</i>": 20 if step < 30 else 0},
    }


def measure(folder, steps, base):
    """Write pools of steps that are not there, and the record of all of them."""
    history = {}
    for step in steps:
        path = folder / "pools" / f"step-{step:06d}"
        pool = fill(path, hits_at(step)) if not path.exists() else type(base).open(path)
        history[step] = {**support_metrics(base.hits(), pool.hits()), **passes(pool), "entropy/answer": 2 - step / 50}
    record = {"k": K, "token_entropy": "entropy/token_T1", "base_pool": path_from(folder, base.path)}
    write_record(folder, {**record, "base": {**passes(base), "entropy/answer": 2.0}, "steps": history})


def passes(pool):
    found = pool.hits()
    pass_pk = pass_at_k(found.correct_p, found.n_p, [1, 2, 4, 8, 16, 32])
    return {f"pass_at_k/{2**i}": float(value) for i, value in enumerate(np.asarray(pass_pk).mean(axis=0))}


def write_events(folder: Path, when: float) -> None:
    """One scalar, as a run of TensorBoard needs it."""
    writer = EventFileWriter(str(folder))
    value = Summary(value=[Summary.Value(tag="loss", simple_value=1.0)])
    writer.add_event(Event(wall_time=when, step=1, summary=value))
    writer.close()
