"""kill -9 of `offleash sample` at random moments: no sample is lost, doubled or changed."""

import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

from offleash.eval.pool.pool import Pool

LIVES = textwrap.dedent(
    """
    import json, os, random, signal, sys, time
    from offleash.train import cli
    from offleash.eval.engines import find_engine

    folder, words, kills, seed = json.loads(sys.argv[1])
    find_engine("transformers")  # imported once; nothing is computed before the fork

    def life(name):
        pid = os.fork()
        if pid == 0:
            os._exit(cli.main(["sample", *words, "--pool", os.path.join(folder, name)]))
        return pid

    started = time.monotonic()
    assert os.waitpid(life("whole"), 0)[1] == 0
    length = time.monotonic() - started
    chance, died = random.Random(seed), 0
    while died < kills:
        pid = life("killed")
        time.sleep(chance.uniform(0.0, 0.8) * length)
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            break  # it was done before
        died += 1
    assert os.waitpid(life("killed"), 0)[1] == 0
    print(died)
    """
)
COLUMNS = ["problem_id", "index", "answer", "correct", "tokens", "logprob", "completion"]


def test_a_run_that_dies_again_and_again_ends_with_the_very_same_pool(tmp_path: Path, chaos: random.Random) -> None:
    words = [
        *["--model", "lab", "--task", "countdown", "--task-args", '{"split": "probe", "n": 5}', "--k", "256"],
        *["--max-new-tokens", "20", "--save-every", "0.1"],
    ]
    if chaos.random() < 0.5:
        words += ["--plan", "until", "--successes", "5"]
    lives = json.dumps([str(tmp_path), words, 12, chaos.random()])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LIVES, lives], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= 1
    whole, killed = Pool.open(tmp_path / "whole"), Pool.open(tmp_path / "killed")
    assert killed.duplicates() == 0
    assert killed.read(COLUMNS).to_pylist() == whole.read(COLUMNS).to_pylist()
