from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from offleash.callbacks.charts import custom_layout, lay_out
from offleash.callbacks.event_files import trim_events


def write_run(folder: Path, steps: range) -> None:
    with SummaryWriter(folder) as writer:
        writer.add_text("args", "what every start writes")
        lay_out(writer, custom_layout(1.0, 8))
        for step in steps:
            writer.add_scalar("loss", step * 0.5, step)


def tags(folder: Path) -> list[str]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [e for p in sorted(folder.glob("events*")) for e in EventFileLoader(str(p)).Load()]
    return [value.tag for event in events for value in event.summary.value]


def test_a_resumed_run_shows_every_step_once(tmp_path, read_scalars):
    write_run(tmp_path, range(0, 8))
    assert trim_events(tmp_path, 4) == 3 + 2
    write_run(tmp_path, range(5, 10))
    assert read_scalars(tmp_path)["loss"] == [(step, step * 0.5) for step in range(10)]
    assert tags(tmp_path).count("args/text_summary") == 1
    assert tags(tmp_path).count("custom_scalars__config__") == 1


def test_what_stays_is_byte_for_byte_what_was_written(tmp_path):
    write_run(tmp_path, range(0, 3))
    (path,) = tmp_path.glob("events*")
    before = path.read_bytes()
    trim_events(tmp_path, 1)
    after = path.read_bytes()
    assert len(after) < len(before)
    assert after[-40:] in before


@pytest.mark.parametrize("cut", [1, 5, 13, 30])
def test_a_record_torn_by_a_kill_is_left_out(tmp_path, cut, read_scalars):
    write_run(tmp_path, range(0, 5))
    (path,) = tmp_path.glob("events*")
    path.write_bytes(path.read_bytes()[:-cut])
    trim_events(tmp_path, 100)
    write_run(tmp_path, range(4, 6))
    steps = [step for step, _ in read_scalars(tmp_path)["loss"]]
    assert steps == [0, 1, 2, 3, 4, 5]


def test_a_missing_folder_has_nothing_to_trim(tmp_path):
    assert trim_events(tmp_path / "missing", 3) == 0
