"""What reaches a tracker. The real W&B and trackio are in test_real_trackers.py; TensorBoard is real everywhere."""

import html
import math
from types import SimpleNamespace

from transformers.integrations import TrackioCallback, WandbCallback

from offleash.callbacks.observer import Observer
from offleash.callbacks.trackers import lost_and_gained_table, table_rows
from offleash.eval.comparison.changes import Change


class Recorder:
    run = "open"

    def __init__(self):
        self.logged = []

    def log(self, values):
        self.logged.append(values)


def callback_of(kind, attribute):
    callback, recorder = object.__new__(kind), Recorder()
    setattr(callback, attribute, recorder)
    return callback, recorder


def test_the_same_names_reach_wandb_and_trackio_with_the_step_and_without_undefined_numbers(stand_in_trainer):
    for kind, attribute in ((WandbCallback, "_wandb"), (TrackioCallback, "_trackio")):
        callback, recorder = callback_of(kind, attribute)
        trainer = stand_in_trainer(callback_handler=SimpleNamespace(callbacks=[callback]))
        Observer(trainer).scalars({"support/unit/srr": 0.9, "support/unit/sds": math.nan}, step=7)
        assert recorder.logged == [{"support/unit/srr": 0.9, "train/global_step": 7}]


def test_without_trackers_nothing_happens(stand_in_trainer):
    trainer = stand_in_trainer(callback_handler=SimpleNamespace(callbacks=[]))
    observer = Observer(trainer)
    observer.scalars({"a/b": 1.0}, step=0)
    assert observer.trackers.tensorboard is None
    assert observer.failed == 0


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


def test_rows_of_a_table_are_bounded_and_on_one_line():
    lost = [Change(f"p{i}", "a\nb" * 100, 9, 64, 0, 64) for i in range(300)]
    rows = table_rows(lost, [Change("q", "1+1", 0, 64, 3, 64)])
    assert len(rows) == 201
    assert rows[-1] == ["gained", "q", "1+1", 0, 64, 3, 64]
    assert "\n" not in rows[0][2]
    assert len(rows[0][2]) <= 80
