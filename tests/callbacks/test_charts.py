"""TensorBoard's Custom Scalars: which charts there are, and what their axes leave out."""

import math

import numpy as np
import pytest
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from offleash.callbacks import tags
from offleash.callbacks.charts import (
    charts,
    custom_layout,
    moves_figure,
    pass_at_k_figure,
    spread_steps,
    with_whole_bands,
)

ALL = {metric.tag for metric in tags.METRICS} | {metric.base for metric in tags.METRICS}
FILLED = {"pass_at_k/1", "pass_at_k/64", "pass_at_k/base/1", "pass_at_k/base/64", "entropy/token_T1"}


def test_no_chart_can_be_smoothed_and_every_rate_has_its_noise():
    (value,) = custom_layout(1.0, 64, exact=True).value
    layout = Layout.FromString(value.tensor.string_val[0])
    drawn = [chart for category in layout.category for chart in category.chart]
    assert all(chart.HasField("margin") for chart in drawn)
    by_value = {chart.margin.series[0].value: chart.margin.series for chart in drawn}
    for name in ("srr", "ndr", "sds", "nscr"):
        first, second = by_value[f"support/unit/{name}_hits5"]
        assert first.lower == f"noise/unit/{name}_hits5_low"
        assert second.value == f"noise/unit/{name}_hits5"


def test_a_layout_names_tags_of_the_table():
    patterns = {"exact/nscr", "exact/leash/nscr"}
    for chart in (chart for found in charts(1.0, 64, exact=True).values() for chart in found):
        for tag in chart.tags - FILLED - {"entropy/base/token_T1"}:
            assert tag in ALL or tag.rpartition("_")[0] in patterns, tag


def test_charts_of_tags_that_were_not_logged_are_left_out():
    (value,) = custom_layout(1.0, 64, known={"pass_at_k/64", "pass_at_k/base/64"}).value
    (category,) = Layout.FromString(value.tensor.string_val[0]).category
    assert [chart.title for chart in category.chart] == ["pass@64"]


def test_a_band_is_logged_only_around_a_number():
    band = {metric.tag: 0.1 for metric in tags.UNIT_NOISE.ndr}
    assert with_whole_bands({"support/unit/ndr": math.nan, **band}) == pytest.approx(
        {"support/unit/ndr": math.nan}, nan_ok=True
    )
    assert with_whole_bands({"support/unit/ndr": 0.2, **band}) == {"support/unit/ndr": 0.2, **band}


@pytest.mark.parametrize("steps", range(2, 7))
def test_no_value_of_up_to_6_steps_is_dropped_from_the_axis_as_an_outlier(steps):
    """TensorBoard 2.21: of all numbers of a chart, those outside the 5 % and 95 % quantile do not count."""
    value = np.r_[np.full(steps - 1, 20.0), 60.0]  # the last step jumps
    low, high, flat = np.full(steps, 13.0), np.full(steps, 27.0), np.full(steps, 19.0)
    numbers = np.r_[value, low, high, flat, value, value]
    assert np.quantile(numbers, 0.95) == 60
    assert np.quantile(np.r_[value, low, high], 0.95) < 60  # without the second line


CURVES = {step: {1: 0.4 + step / 100, 2: 0.5} for step in range(0, 40, 2)}


def test_the_figure_draws_base_policy_and_reweighted_base():
    base, policy, line = {1: 0.4, 2: 0.5}, {0: {1: 0.4, 2: 0.5}, 7: {1: 0.5, 2: 0.52}}, {1: 0.5, 2: 0.6}
    (axes,) = pass_at_k_figure(base, policy, line).axes
    assert [list(drawn.get_ydata()) for drawn in axes.lines] == [[0.4, 0.5], [0.4, 0.5], [0.5, 0.52], [0.5, 0.6]]
    words = [" ".join(text.get_text().split()) for text in axes.get_legend().get_texts()]
    assert words == ["base", "policy, step 0", "policy, step 7", "KL-optimal reweighting of the base at this pass@1"]
    (axes,) = pass_at_k_figure(base, {7: policy[7]}, {}, "my-bench").axes
    assert axes.get_title(loc="left") == "my-bench"
    assert len(axes.lines) == 2


def test_the_last_figure_shows_the_first_step_however_many_there_are():
    (axes,) = pass_at_k_figure({1: 0.4, 2: 0.5}, CURVES, {}).axes
    labels = [drawn.get_label() for drawn in axes.lines]
    assert "policy, step 0" in labels
    assert "policy, step 38" in labels
    assert len(axes.lines) == 7
    assert spread_steps(range(100))[:1] + spread_steps(range(100))[-1:] == [0, 99]


def test_lost_and_gained_are_drawn_in_their_bands():
    low, high = tags.UNIT_NOISE.shrunk.low.tag, tags.UNIT_NOISE.shrunk.high.tag
    steps = {step: {tags.UNIT.shrunk.tag: 5.0 + step, low: 3.0, high: 9.0} for step in (0, 10)}
    lost, gained = moves_figure(steps, "problems").axes
    assert list(lost.lines[0].get_ydata()) == [5.0, 15.0]
    assert lost.get_title(loc="left") == "problems lost"
    (band,) = lost.collections
    assert {y for _, y in band.get_paths()[0].vertices} == {3.0, 9.0}
    assert len(gained.lines) == 1  # what was not measured is left out


@pytest.mark.parametrize("make", [lambda: pass_at_k_figure({1: 0.4}, {0: {1: 0.4}}, {}), lambda: moves_figure({}, "u")])
def test_a_card_is_twice_what_tensorboard_shows(make):
    figure = make()
    assert tuple(figure.get_size_inches() * figure.dpi) == (700, 430)
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
