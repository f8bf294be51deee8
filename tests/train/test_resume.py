"""kill -9, the same command again: the same trajectory, nothing lost, nothing doubled."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from offleash.eval.pool.pool import Pool
from offleash.eval.scoring.exact import ExactUnits
from offleash.train.run_folder.checkpoints import last_complete_checkpoint

pytestmark = pytest.mark.long

STEPS = 7
EXACT = {"max_steps": STEPS, "monitor_exact": "true", "probe_args": '{"split": "probe", "n": 9, "strict": true}'}


def samples(pool: Path) -> list[dict]:
    return Pool.open(pool).read(["problem_id", "index", "completion", "answer", "logprob", "entropy"]).to_pylist()


def steady(metrics: dict[str, float]) -> dict[str, float]:
    return {tag: value for tag, value in metrics.items() if "seconds" not in tag}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, launch):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    done = launch(folder, "one_process", **EXACT)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize(
    "moment",
    [
        "checkpoint-4/model.safetensors",
        pytest.param("pools/step-000006/pool.json", marks=pytest.mark.slow),
        pytest.param("recipe.yaml", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_continues_on_the_same_trajectory(
    moment, undisturbed, tmp_path, launch, launch_and_kill, logged, trajectory, read_scalars
):
    folder = tmp_path / "run"
    launch_and_kill(folder, folder / moment, **EXACT)
    again = launch(folder, **EXACT, resume="true")
    assert again.returncode == 0, again.stderr[-3000:]

    assert trajectory(logged(folder, STEPS)) == trajectory(logged(undisturbed, STEPS))
    assert {p.name for p in (folder / "pools").iterdir()} == {p.name for p in (undisturbed / "pools").iterdir()}
    for pool in (folder / "pools").iterdir():
        assert samples(pool) == samples(undisturbed / "pools" / pool.name)
        name = f"exact/{pool.name}.npz"
        ours, theirs = (ExactUnits.load(f / name).probability_u for f in (folder, undisturbed))
        np.testing.assert_array_equal(ours, theirs)
    ours, theirs = (json.loads((f / "support.json").read_text())["steps"] for f in (folder, undisturbed))
    assert {s: steady(m) for s, m in ours.items()} == {s: steady(m) for s, m in theirs.items()}
    # The Trainer's closing summary is of the last leg only, and it logs the epoch twice at the last step.
    clock = ("seconds", "time", "runtime", "per_second", "train/total_flos", "train/epoch", "train/train_loss")
    ours, theirs = (
        {tag: points for tag, points in read_scalars(f).items() if not any(c in tag for c in clock)}
        for f in (folder, undisturbed)
    )
    assert ours == theirs


def test_a_finished_run_is_not_trained_further_and_a_used_folder_is_not_overwritten(undisturbed, launch, logged):
    before = logged(undisturbed, STEPS)
    ended = launch(undisturbed, **EXACT, resume="true")
    assert ended.returncode == 0
    assert "already finished" in ended.stdout
    assert "NSCR" in ended.stdout
    assert last_complete_checkpoint(undisturbed).name == f"checkpoint-{STEPS}"
    shutil.rmtree(undisturbed / "final")
    assert launch(undisturbed, **EXACT, resume="true").returncode == 0
    assert (undisturbed / "final" / "model.safetensors").exists()
    assert logged(undisturbed, STEPS) == before
    refused = launch(undisturbed, **EXACT)
    assert refused.returncode != 0
    assert "contains a run: add --resume" in refused.stderr
