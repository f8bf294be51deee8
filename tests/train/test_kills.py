"""kill -9 of a part of a run: it ends with a clear error instead of hanging, and continues where it was.

One of two ranks dies: the launcher (torch elastic) ends the other. The judge dies: the verifier fails too often.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from offleash import recipes

pytestmark = pytest.mark.slow

RECIPES = Path(recipes.__path__[0])
SETTINGS = {
    "train_args": '{"split": "train", "n": 64}',
    "probe_args": '{"split": "probe", "n": 6}',
    "monitor_exact": "false",
    "per_device_train_batch_size": "8",
    "num_generations": "8",
    "learning_rate": "5e-4",
    "max_steps": "6",
    "save_steps": "2",
    "save_total_limit": "100",
    "monitor_every": "3",
    "monitor_k": "4",
    "monitor_score_k": "4",
    "monitor_batch_size": "16",
    "use_cpu": "true",
    "disable_tqdm": "true",
}
LAUNCHER = [
    *[sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"],
    *["--config_file", str(RECIPES / "accelerate" / "cpu_two_processes.yaml"), "-m"],
]
ALONE = [sys.executable, "-m"]


def start(starter: list[str], folder: Path, *, path: Path | None = None, **settings: Any) -> subprocess.Popen[str]:
    flags = {**SETTINGS, "output_dir": str(folder), **settings}
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    modules = os.pathsep.join(filter(None, [str(path or ""), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": modules}
    return subprocess.Popen(
        [*starter, "offleash.train", "--config", "lab", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str]:
    """Its exit status and what it printed. A run that hangs is killed, and fails the test."""
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, text


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not file.exists():
        assert process.poll() is None, f"the run ended before {file.name} was there: {ended(process)[1][-3000:]}"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ranks_of(launcher: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    ranks = {}
    for child in psutil.Process(launcher.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a short-lived child of a rank
            if (rank := child.environ().get("RANK")) is not None:
                ranks.setdefault(int(rank), child)
    return ranks


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    status, text = ended(start(LAUNCHER, folder))
    assert status == 0, text[-3000:]
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_of_one_rank_ends_the_run_at_once_and_it_continues_on_its_trajectory(
    rank, undisturbed, tmp_path, logged, trajectory
):
    folder = tmp_path / "run"
    process = start(LAUNCHER, folder)
    wait_for(folder / "checkpoint-2" / "trainer_state.json", process)
    ranks = ranks_of(process)
    assert sorted(ranks) == [0, 1]
    ranks[rank].kill()
    status, text = ended(process, seconds=60)
    assert status != 0
    assert "SIGKILL" in text
    assert not any(other.is_running() for other in ranks.values())
    assert not (folder / "final").exists()

    status, text = ended(start(LAUNCHER, folder, resume="true"))
    assert status == 0, text[-3000:]
    assert "continuing from" in text
    assert trajectory(logged(folder, 6)) == trajectory(logged(undisturbed, 6))


TASK = '''
from pathlib import Path

from offleash.eval.problem import Problem
from offleash.eval.tasks import load_task
from offleash.eval.tasks.text_tasks import JudgedAnswers
from offleash.eval.verify.judge import Judge


class Judged(JudgedAnswers):
    """Countdown's prompts, and a judge that has an opinion on every answer."""

    def __init__(self, url: str, split: str, n: int, cache: str) -> None:
        problems = [
            Problem(p.id, p.prompt, "the gold", {"question": str(p.prompt)})
            for p in load_task("countdown", split=split, n=n).problems
        ]
        super().__init__("judged", problems, Judge(url, "judge", Path(cache), attempts=3, first_pause=0.05))
'''
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps({"choices": [{"message": {"content": "AB"[sum(str(body).encode()) % 2]}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def serve() -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """Start the judge's server at a port, in a process of its own."""
    started = []

    def at(port: int) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", SERVER, str(port)]))
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return started[-1]

    yield at
    for process in started:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def judged(folder: Path, port: int, tmp_path: Path, **settings: Any) -> subprocess.Popen[str]:
    (tmp_path / "judged_task.py").write_text(TASK)
    rest = f'"url": "http://127.0.0.1:{port}/v1", "cache": "{folder}-grades.jsonl"'
    arguments = {
        "task": "judged_task:Judged",
        "train_args": f'{{"split": "train", "n": 64, {rest}}}',
        "probe_args": f'{{"split": "probe", "n": 6, {rest}}}',
        "monitor_exact": "false",
        "per_device_train_batch_size": 128,  # 200 verdicts are there before the second step's end
    }
    return start(ALONE, folder, path=tmp_path, **arguments, **settings)


def test_the_death_of_the_judge_ends_the_run_with_one_line_and_it_continues_on_its_trajectory(
    tmp_path, serve, logged, trajectory
):
    port = free_port()
    server = serve(port)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    status, text = ended(judged(whole, port, tmp_path))
    assert status == 0, text[-3000:]

    process = judged(cut, port, tmp_path)
    wait_for(cut / "checkpoint-2" / "trainer_state.json", process)
    server.kill()
    server.wait()
    status, text = ended(process, seconds=120)
    assert status == 2
    assert text.splitlines()[-1].startswith("offleash: error: the verifier failed on")
    assert "Traceback" not in text
    assert not (cut / "checkpoint-6").exists()

    serve(port)
    status, text = ended(judged(cut, port, tmp_path, resume="true"))
    assert status == 0, text[-3000:]
    assert "continuing from" in text
    assert trajectory(logged(cut, 6)) == trajectory(logged(whole, 6))
