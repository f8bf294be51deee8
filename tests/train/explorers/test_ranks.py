"""The identity explorer on two ranks: stock TRL's trajectory, with groups of 8 that straddle ranks of 12."""

import pytest

pytestmark = pytest.mark.slow

STOCK = """
import offleash.train.grpo
from trl import GRPOTrainer
def stock(*, reward, rewards, explorers, **others):
    trainer = GRPOTrainer(reward_funcs=rewards, **others)
    trainer.verifier, trainer.best_step = reward, None
    return trainer
offleash.train.grpo.ExploringTrainer = stock
"""
SETTINGS = {"max_steps": 3, "per_device_train_batch_size": 12, "save_steps": 3, "monitor_every": 0}


@pytest.mark.parametrize("processes", ["cpu_two_processes", "cpu_zero3"])
def test_the_identity_is_stock_trl(processes, launch, launch_patched, logged, trajectory, tmp_path):
    stock = launch_patched(tmp_path / "stock", STOCK, processes, **SETTINGS)
    assert stock.returncode == 0, stock.stderr[-4000:]
    identity = launch(tmp_path / "identity", processes, explorer="identity", **SETTINGS)
    assert identity.returncode == 0, identity.stderr[-4000:]
    ours, theirs = trajectory(logged(tmp_path / "identity", 3)), trajectory(logged(tmp_path / "stock", 3))
    assert len(theirs) == 3
    assert not any(key.startswith("explorer/") for row in theirs for key in row)
    assert [{key: row[key] for key in other} for row, other in zip(ours, theirs, strict=True)] == theirs
    assert all(row["explorer/advantage_change_abs"] == 0 for row in ours)


@pytest.mark.parametrize("processes", ["cpu_two_processes", "cpu_zero3"])
def test_two_ranks_tilt_and_replay_together(processes, launch, logged, tmp_path):
    """Without a KL reference, so that both ranks score with a copy of the base; all see the rollouts of all."""
    explorer = '{"tilt": {"tau": 0.3}, "mode_replay": {"batch": 6}}'
    done = launch(tmp_path / "run", processes, explorer=explorer, beta=0.0, **SETTINGS)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [row for row in logged(tmp_path / "run", 3) if "reward" in row]
    assert rows[0]["explorer/log_ratio"] == pytest.approx(0, abs=1e-4)
    assert rows[2]["explorer/log_ratio"] != pytest.approx(0, abs=1e-4)
    assert 0 < rows[0]["explorer/modes_banked"] < rows[2]["explorer/modes_banked"]
    assert all(row["explorer/extra_loss"] > 0 for row in rows)
