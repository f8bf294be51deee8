"""How TensorBoard is started on runs: their names, and what the address says."""

import json
import time
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from torch.utils.tensorboard import SummaryWriter

from offleash.callbacks.tab.serve import page_settings, start


def test_the_address_turns_smoothing_off_and_pins_no_more_than_three_runs():
    query = parse_qs(page_settings(["a/b", "c", "d", "e"]))
    assert query["smoothing"] == ["0"]
    pins = json.loads(query["pinnedCards"][0])
    assert pins[-1] == {"plugin": "scalars", "tag": "train/reward"}
    figures = [pin for pin in pins if pin["plugin"] == "images"]
    assert {pin["runId"] for pin in figures} == {f"defaultExperimentId/{run}" for run in ("a/b", "c", "d")}
    assert {pin["tag"] for pin in figures} == {"pass_at_k/base_and_policy", "support/lost_and_gained_by_step"}


def test_a_run_is_called_after_its_folder_wherever_its_events_are(tmp_path: Path):
    for folder in ("new", "old/tensorboard", "watched/tensorboard/watch"):
        with SummaryWriter(str(tmp_path / folder)) as writer:
            writer.add_scalar("a", 1.0, 0)
    address = start({name: tmp_path / name for name in ("new", "old", "watched")}, "localhost", 0)
    parts = urlsplit(address)
    assert parts.fragment == "offleash_support"
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://{parts.netloc}/data/runs") as reply:
            names = json.load(reply)
        if len(names) == 3:
            break
        time.sleep(0.2)
    assert sorted(names) == ["new", "old", "watched/watch"]
