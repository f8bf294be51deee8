"""kill -9 of `offleash sample` at random moments: no sample is lost, doubled or changed."""

import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from offleash.eval.pool.pool import Pool
from tests.chaos.faulty_server import FaultyServer

pytestmark = pytest.mark.long

LIVES = textwrap.dedent(
    """
    import json, os, random, signal, sys, time
    from offleash.train import cli
    from offleash.eval.engines import find_engine

    folder, engine, words, kills, seed = json.loads(sys.argv[1])
    find_engine(engine)  # imported once; nothing is computed before the fork

    def life(name):
        pid = os.fork()
        if pid == 0:
            os._exit(cli.main(["sample", *words, "--pool", os.path.join(folder, name)]))
        return pid

    def finish(name):  # a server that fails too often ends a life with 2, and the next one goes on
        codes = []
        while not codes or codes[-1] == 2:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(life(name), 0)[1]))
            assert codes[-1] in (0, 2) and len(codes) < 100, codes

    started = time.monotonic()
    finish("whole")
    length = time.monotonic() - started
    chance, died = random.Random(seed), 0
    while died < kills:
        pid = life("killed")
        time.sleep(chance.uniform(0.0, 0.8) * length)
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] == 0:
            break  # it was done before
        died += 1
    finish("killed")
    print(died)
    """
)
TASK = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 5}', "--max-new-tokens", "20"]
COLUMNS = ["problem_id", "index", "answer", "correct", "tokens", "completion"]


def check_lives(folder: Path, engine: str, words: list[str], chaos: random.Random) -> None:
    lives = json.dumps([str(folder), engine, words, 12, chaos.random()])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LIVES, lives], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= 1
    whole, killed = Pool.open(folder / "whole"), Pool.open(folder / "killed")
    assert killed.duplicates() == 0
    assert killed.read(COLUMNS).to_pylist() == whole.read(COLUMNS).to_pylist()
    # What else is in a batch changes a sum of floats in its last digits.
    logprobs = [pool.read(["logprob"])["logprob"].to_numpy() for pool in (killed, whole)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-3)


def test_a_run_that_dies_again_and_again_ends_with_the_very_same_pool(tmp_path: Path, chaos: random.Random) -> None:
    words = ["--model", "lab", *TASK, "--k", "256", "--save-every", "0.1"]
    if chaos.random() < 0.5:
        words += ["--plan", "until", "--successes", "5"]
    check_lives(tmp_path, "transformers", words, chaos)


def test_so_it_does_while_the_server_fails_too(tmp_path: Path, chaos: random.Random, server: FaultyServer) -> None:
    server.misbehave(chaos.random(), rate=0.2)
    quick = json.dumps({"concurrency": 4, "timeout": 1.0, "retries": 3, "pause": 0.01})
    words = ["--model", server.url, *TASK, "--k", "256", "--save-every", "0.1", "--engine-args", quick]
    check_lives(tmp_path, "openai", words, chaos)
