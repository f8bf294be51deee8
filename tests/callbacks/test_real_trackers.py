"""The real clients of W&B and trackio, offline: a run of one step, read back from what they wrote."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from offleash.callbacks import SupportCallback, SupportGuard
from offleash.eval.tasks import load_task

pytestmark = pytest.mark.long

COLUMNS = ["moved", "problem", "answer", "base hits", "base samples", "policy hits", "policy samples"]


def trained(make_trainer, tracker: str) -> SupportCallback:
    trainer = make_trainer(max_steps=1, report_to=tracker, run_name="lab", project="offleash", learning_rate=1e-3)
    monitor = SupportCallback(trainer, load_task("countdown", split="probe", n=6), k=8, every=1)
    trainer.add_callback(monitor)
    trainer.add_callback(SupportGuard(monitor, "out >= 0"))
    trainer.train()
    assert monitor.observer.failed == 0
    return monitor


def test_wandb_has_the_figures_and_the_table(make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    monitor = trained(make_trainer, "wandb")
    wandb.finish()
    media = next(tmp_path.glob("wandb/offline-run-*/files")) / "media"
    tables = [json.loads(path.read_text()) for path in media.glob("table/support/*.json")]
    assert [table["columns"] for table in tables] == [COLUMNS] * 2
    moved = [sum(row[0] == "lost" for row in table["data"]) for table in tables]
    assert sorted(moved) == sorted(metrics["support/unit/shrunk"] for metrics in monitor.history.values())
    images = sorted(media.glob("images/*/*.png"))
    assert len(images) == 4  # two figures of two steps
    with Image.open(images[0]) as image:
        assert image.size == (700, 430)


def test_trackio_has_the_figures_the_table_and_the_alert(make_trainer) -> None:
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.utils import MEDIA_DIR

    assert Path.home() not in MEDIA_DIR.parents  # see tests/conftest.py
    monitor = trained(make_trainer, "trackio")
    logs = [log for log in SQLiteStorage.get_logs("offleash", "lab") if "support/lost_and_gained" in log]
    assert [log["train/global_step"] for log in logs] == [0, 1]
    for log in logs:
        rows = log["support/lost_and_gained"]["_value"]
        counted = monitor.history[log["train/global_step"]]
        assert sum(row["moved"] == "lost" for row in rows) == counted["support/unit/shrunk"]
        assert all(list(row) == COLUMNS for row in rows)
        for tag in ("pass_at_k/base_and_policy", "support/lost_and_gained_by_step"):
            with Image.open(MEDIA_DIR / log[tag]["file_path"]) as image:
                assert image.size == (700, 430)
    (alert,) = SQLiteStorage.get_alerts("offleash", "lab")
    assert (alert["title"], alert["level"]) == ("Stopped at step 1", "warn")
    assert "the rule is 'out >= 0'" in alert["text"]
    shutil.rmtree(MEDIA_DIR.parent)
