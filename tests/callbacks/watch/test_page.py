"""The event file of a watched run is a function of what was measured, whatever the order it was measured in."""

import numpy as np
import pytest

from offleash.callbacks import tags
from offleash.callbacks.counted import count_pool, pool_metrics, step_metrics
from offleash.callbacks.watch.page import Page
from offleash.eval.pool.testing import make_pool

K = 8


@pytest.fixture
def measured(tmp_path):
    base = count_pool(make_pool(tmp_path / "base", hits=[5, 2, 0, 1], k=K))
    counted = {
        step: count_pool(make_pool(tmp_path / f"step-{step}", hits=[5, step, 1, 0], k=K)) for step in (0, 2, 4, 6)
    }
    clock = {tags.SECONDS.tag: 1.0, tags.SECONDS_TOTAL.tag: 2.0, tags.MONITOR_FAILED.tag: 0.0}
    steps = {step: step_metrics(base, one, 1.0) | clock for step, one in counted.items()}
    return pool_metrics(base, 1.0), base.hits, steps, counted


def show(page, measured, steps, asked=None):
    base, base_hits, metrics, counted = measured

    def hits_of(step):
        if asked is not None:
            asked.append(step)
        return counted[step].hits

    page.write("sums", base, base_hits, {step: metrics[step] for step in steps}, hits_of)


def test_the_page_is_the_same_in_whatever_order_steps_were_measured(tmp_path, measured, read_scalars, read_tags):
    at_once, one_by_one = (Page(tmp_path / name / "watch", K, 1.0) for name in ("once", "each"))
    show(at_once, measured, (0, 2, 4, 6))
    for steps in ((0,), (0, 6), (0, 4, 6), (0, 2, 4, 6)):
        show(one_by_one, measured, steps)
    assert read_scalars(at_once.folder) == read_scalars(one_by_one.folder)
    assert read_tags(at_once.folder) == read_tags(one_by_one.folder)


def test_every_number_stands_once_in_order_and_constants_stand_where_the_callback_puts_them(
    tmp_path, measured, read_scalars, read_tags
):
    page = Page(tmp_path / "watch", K, 1.0)
    for steps in ((0,), (0, 6), (0, 4, 6)):
        show(page, measured, steps)
    scalars, metrics = read_scalars(page.folder), measured[2]
    for tag in metrics[0]:
        wanted = [(s, metrics[s][tag]) for s in (0, 4, 6) if np.isfinite(metrics[s][tag])]
        once = tag in {metric.tag for metric in tags.ONCE}
        assert scalars.get(tag, []) == [(s, pytest.approx(v)) for s, v in (wanted[:1] if once else wanted)], tag
    assert [step for step, _ in scalars["pass_at_k/base/1"]] == [0, 4, 6]
    tags_shown = read_tags(page.folder)
    assert tags_shown["pass_at_k/base_and_policy"] == tags_shown["support/lost_and_gained_by_step"] == [6]  # all steps
    assert tags_shown["support/lost_and_gained/text_summary"] == [0, 4, 6]
    assert len(tags_shown["custom_scalars__config__"]) == 1
    assert all(steps == sorted(steps) for steps in tags_shown.values())


def test_steps_that_are_shown_are_not_drawn_again_and_one_that_is_taken_out_goes(tmp_path, measured, read_scalars):
    page, asked = Page(tmp_path / "watch", K, 1.0), []
    show(page, measured, (0, 2), asked)
    show(page, measured, (0, 2, 4), asked)
    assert asked == [0, 2, 4]
    show(page, measured, (0, 4), asked)
    assert asked == [0, 2, 4]
    assert [step for step, _ in read_scalars(page.folder)["pass_at_k/1"]] == [0, 4]
    assert page.is_of({0: {}, 4: {}})
    assert not page.is_of({0: {}})


def test_a_kill_before_the_former_file_is_emptied_shows_no_step_twice_after_the_next_write(
    tmp_path, measured, read_scalars
):
    page = Page(tmp_path / "watch", K, 1.0)
    show(page, measured, (0, 2))
    (former,) = page.folder.iterdir()
    data = former.read_bytes()
    show(page, measured, (0, 2, 4))
    former.write_bytes(data)  # as the kill leaves it
    assert not page.is_of({0: {}, 2: {}, 4: {}})
    show(page, measured, (0, 2, 4))
    assert page.is_of({0: {}, 2: {}, 4: {}})
    assert [step for step, _ in read_scalars(page.folder)["pass_at_k/1"]] == [0, 2, 4]


def test_a_damaged_file_is_made_anew(tmp_path, measured, read_scalars):
    page, asked = Page(tmp_path / "watch", K, 1.0), []
    show(page, measured, (0, 2))
    (file,) = page.folder.iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    show(page, measured, (0, 2), asked)
    assert asked == [0, 2]
    assert [step for step, _ in read_scalars(page.folder)["pass_at_k/1"]] == [0, 2]


def test_a_tensorboard_that_is_open_sees_the_steps_in_order(tmp_path, measured):
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    page = Page(tmp_path / "watch", K, 1.0)
    show(page, measured, (0, 6))
    reader = EventAccumulator(str(page.folder))
    for steps in ((0, 6), (0, 2, 6), (0, 2, 4, 6)):
        show(page, measured, steps)
        reader.Reload()
        assert [event.step for event in reader.Tensors("pass_at_k/1")] == list(steps)
