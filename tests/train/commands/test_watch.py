"""The command, as a user types it; at length beside a plain TRL run in another process, killed twice."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from offleash.train.cli import main

TASK = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 12}', "--base", "lab"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--k", "0"], "k must be"),
        (["--k", "4", "--every", "0"], "--every"),
        (["--k", "4", "--behind", "0"], "--behind"),
        (["--k", "4", "--poll", "0"], "--poll"),
        (["--k", "4", "--successes", "3"], "--plan until"),
        (["--k", "4", "--score-k", "-1"], "--score-k"),
        (["--k", "4", "--engine", "openai"], "server"),
        (["--k", "4", "--once"], "no checkpoint"),
        (["--k", "4", "--once", "--task-args", "[]"], "--task-args"),
    ],
)
def test_a_mistake_is_one_line_and_status_2_and_nothing_is_written(tmp_path, capsys, flags, named):
    assert main(["watch", str(tmp_path / "run"), *TASK, *flags]) == 2
    said = capsys.readouterr().err.strip()
    assert named in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys
from pathlib import Path
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from offleash import recipes
from offleash.callbacks import SupportCallback
from offleash.eval import load_task

task = load_task("countdown", split="train", n=64)
problems = {problem.prompt: problem for problem in task.problems}

def reward(prompts, completions, **columns):
    return [float(v.correct) for v in task.verify([problems[p] for p in prompts], completions)]

trainer = GRPOTrainer(
    model=str(Path(recipes.__path__[0]) / "lab" / "base"),
    reward_funcs=reward,
    train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in problems]),
    args=GRPOConfig(
        output_dir=sys.argv[1], max_steps=6, learning_rate=1e-3, num_generations=4, per_device_train_batch_size=32,
        max_completion_length=20, save_strategy="steps", save_steps=2, logging_steps=1, use_cpu=True, bf16=False,
        report_to="tensorboard" if sys.argv[2] == "callback" else "none", disable_tqdm=True, seed=3,
    ),
)
if sys.argv[2] == "callback":
    probe = load_task("countdown", split="probe", n=12)
    trainer.add_callback(SupportCallback(trainer, probe, k=16, every=2, score_k=4))
trainer.train()
"""


def start(line, **environment):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(line, env=env, start_new_session=True, **quiet)


def wait_until(happened, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, "it ended before that"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measured(folder):
    try:
        return {int(step) for step in json.loads((folder / "support.json").read_text())["steps"]}
    except FileNotFoundError:
        return set()


@pytest.mark.slow
def test_a_watcher_beside_a_plain_trl_run_killed_twice_shows_the_page_of_the_callback(
    tmp_path, read_scalars, read_tags
):
    (script := tmp_path / "train.py").write_text(SCRIPT)
    run, watched = tmp_path / "callback" / "run", tmp_path / "watched" / "run"
    settings = [*TASK, "--k", "16", "--score-k", "4", "--max-new-tokens", "20", "--poll", "0.2", "--save-every", "0"]
    watch = [sys.executable, "-m", "offleash", "watch", str(watched), *settings, "--order", "oldest"]

    watcher = start(watch)  # before the run exists
    trainer = start([sys.executable, str(script), str(watched), "plain"])
    try:
        wait_until(lambda: any((watched / "pools" / "step-000002").glob("samples-*")), watcher)
        kill(watcher)  # while it samples step 2
        assert 2 not in measured(watched)
        watcher = start(watch)
        wait_until(lambda: (watched / "watch" / "step-000004" / "pinned").exists(), watcher)
        kill(watcher)  # just after it pinned step 4
        assert measured(watched) >= {0, 2}
        watcher = start(watch)
        wait_until(lambda: measured(watched) == {0, 2, 4, 6}, watcher)
        time.sleep(3)
        assert trainer.wait(timeout=300) == 0
    finally:
        kill(watcher)
        trainer.kill()

    logs = {"TENSORBOARD_LOGGING_DIR": str(run / "tensorboard")}
    assert start([sys.executable, str(script), str(run), "callback"], **logs).wait(timeout=600) == 0

    theirs, ours = (read_tags(folder / "tensorboard") for folder in (run, watched))
    of_trainer = {tag for tag in theirs if tag.startswith("train/")} | {
        "args/text_summary",
        "model_config/text_summary",
    }
    assert set(theirs) - of_trainer == set(ours)
    assert all(len(steps) == len(set(steps)) for steps in ours.values())
    theirs, ours = (read_scalars(folder / "tensorboard") for folder in (run, watched))
    for tag in ("pass_at_k/1", "pass_at_k/16", "support/unit/nscr", "entropy/token_T1", "pass_at_k/base/1"):
        assert [step for step, _ in ours[tag]] == [step for step, _ in theirs[tag]]
    # The policies are the same and the samples are not: both estimate the same pass@1.
    for tag in ("pass_at_k/1", "pass_at_k/base/1"):
        for (_, one), (_, other) in zip(ours[tag], theirs[tag], strict=True):
            assert abs(one - other) < 4 * math.sqrt(2 * 0.25 / (12 * 16))
    for (_, one), (_, other) in zip(ours["entropy/token_T1"], theirs["entropy/token_T1"], strict=True):
        assert one == pytest.approx(other, rel=0.4)
