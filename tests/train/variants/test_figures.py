"""What the figures say is what the analysis has; names do not cover each other."""

import itertools
import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from offleash.eval.report.figure_style import image, inline_svg
from offleash.train.variants.analysis import analyze
from offleash.train.variants.figures import pareto_figure, pareto_front, tradeoff_figure


def test_the_front_is_what_nothing_beats():
    points = [(0.1, 0.9), (0.2, 0.5), (0.3, 0.7), (0.5, 0.7), (0.6, 0.1), (0.6, 0.0)]
    beaten = {i for i, j in itertools.permutations(range(6), 2) if points[j] != points[i] and _beats(points, j, i)}
    assert pareto_front(points) == [i for i in range(6) if i not in beaten] == [0, 3, 4]
    assert pareto_front([(0.5, 0.5)]) == [0]
    assert pareto_front([]) == []


def _beats(points, j, i):
    return points[j][0] >= points[i][0] and points[j][1] >= points[i][1]


@pytest.fixture(scope="module")
def pareto(full_sweep):
    return pareto_figure(full_sweep, analyze(full_sweep.runs))


def test_every_variant_is_named_once_and_no_name_covers_another(pareto, full_sweep):
    (axes,) = pareto.axes
    names = [text.get_text() for text in axes.texts]
    assert sorted(names) == sorted({run.variant for run in full_sweep.runs})
    canvas = FigureCanvasAgg(pareto)
    canvas.draw()
    boxes = [
        Text.get_window_extent(text, canvas.get_renderer()) for text in axes.texts
    ]  # without the line to its point
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(axes.bbox.x1 < box.x0 and box.x1 <= pareto.bbox.x1 for box in boxes)
    assert all(box.y0 >= 0 and box.y1 <= pareto.bbox.y1 for box in boxes)


def test_points_and_cross_bars_are_the_estimates(pareto, full_sweep):
    analysis = analyze(full_sweep.runs)
    bars = pareto.axes[0].containers
    for variant, bar in zip(analysis.variants, bars, strict=True):
        point, _, (across, upright) = bar
        x, y = variant.estimates["pass_at_1"], variant.estimates["nscr"]
        assert (point.get_xdata()[0], point.get_ydata()[0]) == (x.value, y.value)
        assert across.get_segments()[0][:, 0].tolist() == pytest.approx([x.low, x.high])
        assert upright.get_segments()[0][:, 1].tolist() == pytest.approx([y.low, y.high])
    shapes = {v.name: bar[0].get_marker() for v, bar in zip(analysis.variants, bars, strict=True)}
    assert shapes["plain"] == "o"
    assert shapes["placebo"] == shapes["low_lr"] == "D"
    assert shapes["focal"] == "s"


def test_the_page_gets_its_own_colours_and_nothing_to_fetch(pareto):
    svg = inline_svg(pareto)
    assert svg.startswith("<svg ")
    assert "var(--policy, #1f5fa8)" in svg
    assert not re.search(r"(?<!, )#(1c2127|5a6572|b35900|1f5fa8)", svg)
    assert "<b>wild" not in svg
    assert not re.search(r'(href|src)="(?!#)', svg)


def test_files_are_images_and_the_same_every_time(full_sweep):
    analysis = analyze(full_sweep.runs)
    assert image(tradeoff_figure(full_sweep, analysis), "png").startswith(b"\x89PNG")
    first, second = (image(pareto_figure(full_sweep, analysis), "svg") for _ in range(2))
    assert first == second
    assert b">focal<" in first
