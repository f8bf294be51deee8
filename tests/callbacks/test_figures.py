"""The figures of a run."""

import pytest

from offleash.callbacks import tags
from offleash.callbacks.figures import moves_figure, pass_at_k_figure, spread_steps

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
