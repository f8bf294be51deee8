"""Two processes with gloo whose verifier is slow, or crashes on one of them: the work is shared, and nobody hangs."""

import time

import pytest

pytestmark = pytest.mark.slow

SETTINGS = {"max_steps": 2, "per_device_train_batch_size": 8, "lr_scheduler_type": "constant", "save_strategy": "no"}

SLOW = """
import os, time
from pathlib import Path
from offleash.eval.tasks.countdown import Countdown
verify = Countdown.verify

def slow(self, problems, completions, truncated=None):
    time.sleep(0.02 * len(completions))
    with Path({file!r} + os.environ["RANK"]).open("a") as file:
        print(len(completions), file=file)
    return verify(self, problems, completions, truncated)

Countdown.verify = slow
"""

CRASHING = """
import os
from offleash.eval.errors import VerifyError
from offleash.eval.tasks.countdown import Countdown
from offleash.train.rewards import VerifierReward
verify, calls = Countdown.verify, []

def crashing(self, problems, completions, truncated=None):
    is_probe = self is not VERIFIER[0]
    calls.append(is_probe)
    if os.environ["RANK"] == "1" and calls.count(is_probe) == {call} and is_probe == {in_monitor}:
        {crash}
    return verify(self, problems, completions, truncated)

VERIFIER = []
made = VerifierReward.__init__
def noted(self, task, *others, **more):
    VERIFIER.append(task)
    made(self, task, *others, **more)
Countdown.verify, VerifierReward.__init__ = crashing, noted
"""


def test_a_slow_verifier_is_shared_by_all_ranks_and_judges_nothing_twice(launch_patched, read_scalars, tmp_path):
    patch = SLOW.format(file=str(tmp_path / "rank-"))
    done = launch_patched(tmp_path / "run", patch, "cpu_two_processes", **SETTINGS, logging_steps=1)
    assert done.returncode == 0, done.stderr[-4000:]
    judged = [sum(map(int, (tmp_path / f"rank-{rank}").read_text().split())) for rank in range(2)]
    # 8 rollouts in each of 2 steps, and half of 9 probe problems x 8 samples for the base, step 0 and step 2.
    assert judged == [2 * 8 + 3 * 9 * 8 // 2] * 2
    assert [step for step, _ in read_scalars(tmp_path / "run")["rollouts/answer_entropy"]] == [1, 2]


@pytest.mark.parametrize(
    ("crash", "in_monitor", "said"),
    [
        ("raise VerifyError('the judge is down')", False, "offleash: error: the judge is down"),
        ("raise VerifyError('the judge is down')", True, "offleash: error: the judge is down"),
        ("os._exit(9)", False, ""),
        ("os._exit(9)", True, ""),
    ],
)
def test_a_verifier_that_crashes_on_one_rank_ends_the_run_at_once(crash, in_monitor, said, launch_patched, tmp_path):
    patch = CRASHING.format(crash=crash, in_monitor=in_monitor, call=2)
    start = time.monotonic()
    done = launch_patched(tmp_path / "run", patch, "cpu_two_processes", **SETTINGS)
    assert done.returncode != 0
    assert said in done.stderr
    assert time.monotonic() - start < 300  # the timeout of a collective is half an hour


REWARD = """
import os
def fails(completions, **columns):
    if os.environ.get("RANK") == "1" and columns["trainer_state"].global_step == 1:
        raise ZeroDivisionError("nothing to divide by")
    return [0.0] * len(completions)
"""


def test_a_reward_function_that_raises_on_one_rank_is_told_to_the_other_in_one_line(launch, tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(REWARD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    overlay = tmp_path / "rewards.yaml"
    overlay.write_text("rewards: [verifier, own_rewards:fails]\n")
    done = launch(tmp_path / "run", "cpu_two_processes", **SETTINGS, monitor_every=0, config=overlay)
    assert done.returncode != 0
    assert "offleash: error: process 1: ZeroDivisionError: nothing to divide by" in done.stderr
    assert "MonitorError" not in done.stderr
