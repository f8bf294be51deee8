import html
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from offleash.callbacks.tensorboard import custom_layout, lost_and_gained_table, pass_at_k_figure, trim_events
from offleash.eval.comparison.changes import Change


def write_run(folder: Path, steps: range) -> None:
    with SummaryWriter(folder) as writer:
        writer.add_text("args", "what every start writes")
        writer.add_custom_scalars(custom_layout("entropy/token_T1", 8))
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


def test_hostile_text_cannot_break_the_table():
    answer = "<script>alert(1)</script> | x | **b** `c` [l](http://x)\n\n| new | row |"
    table = lost_and_gained_table([Change("p|1", answer, 5, 8, 0, 8)], [])
    rows = table.splitlines()
    assert len(rows) == 3
    assert rows[2].count("|") == 6
    assert "<script>" not in table
    assert "**" not in table
    assert "](" not in table


def test_an_answer_reads_as_it_was_written():
    answer = "(3+4)*5-2 & #1 <b>"
    table = lost_and_gained_table([Change("p", answer, 5, 8, 0, 8)], [])
    assert html.unescape(table.splitlines()[2].split("|")[3].strip()) == answer


def test_the_table_says_how_many_more_there_are():
    lost = [Change(f"p{i}", "1+1", 9 - i, 8, 0, 8) for i in range(5)]
    table = lost_and_gained_table(lost, [], limit=3)
    assert "and 2 more" in table
    assert lost_and_gained_table([], []) == "nothing lost, nothing gained"


def test_the_figure_draws_both_curves():
    figure = pass_at_k_figure({1: 0.4, 2: 0.5}, {1: 0.5, 2: 0.52}, step=7)
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.4, 0.5], [0.5, 0.52]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["base", "policy, step 7"]
