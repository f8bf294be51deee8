"""kill -9 of training at random moments, with files damaged in between: the model is that of an undisturbed run."""

import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.pool.pool import Pool

pytestmark = pytest.mark.long

STEPS = 8
SETTINGS = {
    "train_args": '{"split": "train", "n": 32}',
    "probe_args": '{"split": "probe", "n": 4}',
    "monitor_exact": "false",
    "per_device_train_batch_size": "8",
    "num_generations": "4",
    "learning_rate": "5e-4",
    "max_steps": str(STEPS),
    "save_steps": "1",
    "save_total_limit": "100",
    "monitor_every": "3",
    "monitor_k": "8",
    "monitor_score_k": "4",
    "monitor_batch_size": "16",
    "use_cpu": "true",
    "disable_tqdm": "true",
}
LIVES = textwrap.dedent(
    """
    import json, os, random, signal, sys, time
    from pathlib import Path
    from offleash.train.grpo import train  # imported once; nothing is computed before the fork
    from offleash.train.recipe.config import parse_recipe
    from offleash.train.run_folder.checkpoints import checkpoints
    from offleash.callbacks.watch.sealed import is_sealed
    from offleash.train.run_folder.integrity import damage

    folder, words, kills, harm, seed = json.loads(sys.argv[1])
    chance = random.Random(seed)

    def life(name):
        pid = os.fork()
        if pid == 0:
            train(parse_recipe(["--config", "lab", *words, "--output_dir", f"{folder}/{name}/run", "--resume"]))
            os._exit(0)
        return pid

    def garble(path):
        data = bytearray(path.read_bytes())
        start = chance.randrange(max(1, len(data)))
        data[start : start + 16] = bytes(byte ^ 0xFF for byte in data[start : start + 16])
        path.write_bytes(data)

    def truncate(path):
        path.write_bytes(path.read_bytes()[: chance.randrange(max(1, path.stat().st_size))])

    def hurt(run):
        sound = [path for path in checkpoints(run) if damage(path) is None]
        targets = [*run.glob("events*"), *run.glob("support.json")] if sound else []
        if len(sound) > 1 and is_sealed(sound[-1]):  # one must remain
            targets += [path for path in sound[-1].iterdir() if path.name != "checksums.json"]
        for path in chance.sample(targets, min(2, len(targets))):
            word = chance.choice([garble, truncate, Path.unlink])
            print("hurt", word.__name__, path.relative_to(run), flush=True)
            word(path)

    started = time.monotonic()
    assert os.waitpid(life("whole"), 0)[1] == 0
    length = time.monotonic() - started
    died = 0
    while died < kills:
        pid = life("killed")
        time.sleep(chance.uniform(0.2, 0.8) * length)
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            break  # it was done before, or failed
        died += 1
        if harm:
            hurt(Path(folder, "killed", "run"))
    assert os.waitpid(life("killed"), 0)[1] == 0
    print(died)
    """
)
COLUMNS = ["problem_id", "index", "answer", "correct", "tokens", "logprob", "completion"]


def steady(run: Path) -> dict[str, Any]:
    record = json.loads((run / "support.json").read_text())["steps"]
    return {step: {t: v for t, v in metrics.items() if "seconds" not in t} for step, metrics in record.items()}


def logged(run: Path) -> list[dict[str, float]]:
    history = json.loads((run / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())["log_history"]
    return [{key: value for key, value in row.items() if key != "step_time"} for row in history if "reward" in row]


@pytest.mark.parametrize("harm", [False, True])
def test_a_run_that_dies_again_and_again_ends_with_the_very_same_model(
    tmp_path: Path, chaos: random.Random, harm: bool
) -> None:
    words = [word for key, value in SETTINGS.items() for word in (f"--{key}", value)]
    if chaos.random() < 0.5:
        words += ["--explorer", "dynamic_sampling"]
    lives = json.dumps([str(tmp_path), words, 8, harm, chaos.random()])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LIVES, lives], env=environment, capture_output=True, text=True)
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 1
    whole, killed = (tmp_path / name / "run" for name in ("whole", "killed"))
    for name in ("final/model.safetensors", f"checkpoint-{STEPS}/optimizer.pt", f"checkpoint-{STEPS}/scheduler.pt"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    assert logged(whole) == logged(killed)
    for pool in (whole / "pools").iterdir():
        ours, theirs = (Pool.open(run / "pools" / pool.name).read(COLUMNS).to_pylist() for run in (killed, whole))
        assert ours == theirs
    if harm:
        expected, found = steady(whole), steady(killed)
        assert found == {step: metrics for step, metrics in expected.items() if step in found}
        assert str(STEPS) in found
    else:
        assert steady(whole) == steady(killed)
