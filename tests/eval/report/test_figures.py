"""Figures show the comparison's numbers, in the page's colors, and no label can act in them."""

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from offleash.eval.comparison.result import Comparison, PolicyResult
from offleash.eval.report import figure_style
from offleash.eval.report.figure_style import BASE, POLICY, image, inline_svg
from offleash.eval.report.figures import passk_figure, sensitivity_figures, series_figures, support_figure
from offleash.eval.report.words import LEASH
from offleash.eval.stats.curves import Lead
from offleash.eval.stats.intervals import Estimate

HOSTILE = '_$x_{1$ <b>&amp;" 漢 \x1b[0m\u202e</text><script>alert(1)</script>'


def with_crossing(result: PolicyResult, crossing: Estimate) -> PolicyResult:
    leads = (Lead("policy", Estimate(1.0, math.nan, math.nan, 4), True), Lead("base", crossing, True))
    curves = replace(result.overall.curves, leads=leads)
    return replace(result, overall=replace(result.overall, curves=curves))


def labelled(result: PolicyResult, label: str) -> PolicyResult:
    return replace(result, side=replace(result.side, label=label))


def test_curves_are_the_estimates_and_each_side_has_its_color(pair: Comparison) -> None:
    (result,) = pair.policies
    curves = result.overall.curves
    (axes,) = passk_figure(result).axes
    base, policy = axes.lines[:2]
    assert (base.get_color(), policy.get_color()) == (BASE, POLICY)
    for line, side in ((base, curves.base), (policy, curves.policy)):
        assert line.get_xdata().tolist() == list(curves.ks)
        assert line.get_ydata().tolist() == [e.value for e in side]
    bands = [band.get_paths()[0].vertices for band in axes.collections]
    for band, side in zip(bands, (curves.base, curves.policy), strict=True):
        assert band[:, 1].min() == pytest.approx(min(e.low for e in side))
        assert band[:, 1].max() == pytest.approx(max(e.high for e in side))
    low, high = axes.get_ylim()
    assert 0 <= low <= min(e.low for e in (*curves.base, *curves.policy))
    assert high == 1


def test_the_reweighted_base_is_a_third_curve_with_its_name(pair: Comparison) -> None:
    (result,) = pair.policies
    assert result.leash is not None
    (axes,) = passk_figure(result).axes
    line = axes.lines[2]
    assert line.get_label() == LEASH
    assert line.get_ydata().tolist() == list(result.leash.pass_at_k)
    (axes,) = passk_figure(replace(result, leash=None)).axes
    assert LEASH not in [line.get_label() for line in axes.lines]


def test_what_is_undefined_is_left_out_of_a_curve(pair: Comparison) -> None:
    (result,) = pair.policies
    curves = result.overall.curves
    nothing = Estimate(math.nan, math.nan, math.nan, 0)
    gone = replace(curves, base=(*curves.base[:-1], nothing), policy=(nothing,) * len(curves.ks))
    figure = passk_figure(replace(result, overall=replace(result.overall, curves=gone)))
    base, policy = figure.axes[0].lines[:2]
    assert base.get_xdata().tolist() == list(curves.ks[:-1])
    assert len(policy.get_xdata()) == 0
    assert "nan" not in inline_svg(figure)


@pytest.mark.parametrize(("low", "high"), [(2.0, 4.0), (1.0, math.inf)])
def test_the_crossing_is_marked_with_its_interval(pair: Comparison, low: float, high: float) -> None:
    figure = passk_figure(with_crossing(pair.policies[0], Estimate(3.0, low, high, 4)))
    (axes,) = figure.axes
    assert axes.lines[-1].get_xdata() == [3.0, 3.0]
    (span,) = axes.patches
    left, right = axes.get_xlim()
    assert (span.get_x(), span.get_x() + span.get_width()) == pytest.approx((max(low, left), min(high, right)))
    assert "k = 3.00" in axes.texts[0].get_text()
    assert "k = 3.00" in figure.get_label()


def test_bars_are_shares_with_their_counts(pair: Comparison) -> None:
    result = pair.policies[0]
    figure = support_figure(result)
    counts = result.overall.problem_level.any_hit.estimates
    first = [container[0].get_width() for container in figure.axes[0].containers[:4]]
    expected = [counts[cell].value / 4 for cell in ("preserved", "shrunk", "expanded", "out")]
    assert first == pytest.approx(expected)
    assert [text.get_text() for text in figure.axes[0].texts[:3]] == ["2", "1", "1"]
    assert "preserved 2, shrunk (lost) 1, expanded (gained) 1, out 0" in figure.get_label()


def test_a_series_has_a_panel_per_metric_over_its_steps(series: Comparison) -> None:
    figures = series_figures(series)
    titles = [figure.axes[0].get_title(loc="left") for figure in figures]
    assert titles == ["pass@1", "pass@8", "SRR of units", "NDR of units", "NSCR of units", "answer entropy (nats)"]
    assert [tick.get_text() for tick in figures[0].axes[0].get_xticklabels()] == ["50", "100"]
    for figure, metric in zip(figures[2:5], ("srr", "ndr", "nscr"), strict=True):
        noise = figure.axes[0].lines[1]
        expected = [result.overall.units.any_hit.noise_metrics[metric] for result in series.policies]
        assert (noise.get_label(), noise.get_ydata().tolist()) == ("noise", expected)
    assert figures[4].axes[0].lines[0].get_ydata().tolist() == [
        result.overall.units.any_hit.estimates["nscr"].value for result in series.policies
    ]


def test_the_detection_limit_is_marked_among_the_thresholds(series: Comparison) -> None:
    result = series.policies[-1]
    for figure in sensitivity_figures(result):
        posterior, counted, noise, limit = figure.axes[0].lines
        assert noise.get_label() == "noise"
        assert limit.get_xdata()[0] == result.overall.units.any_hit.detection_limit
        assert len(posterior.get_xdata()) >= len(counted.get_xdata()) > 1


def test_ticks_hold_the_data_and_stay_within_the_limits(series: Comparison, pair: Comparison) -> None:
    for figure in (*series_figures(series), *sensitivity_figures(pair.policies[0])):
        axes = figure.axes[0]
        ticks = axes.get_yticks()
        known = [y for line in axes.lines[:2] for y in line.get_ydata()]
        assert ticks[0] <= min(known)
        assert max(known) <= ticks[-1]
        assert 2 <= len(ticks) <= 7
        assert np.diff(ticks) == pytest.approx([ticks[1] - ticks[0]] * (len(ticks) - 1))
        if "answer" not in axes.get_title(loc="left"):
            assert -1 <= ticks[0] < ticks[-1] <= 1


def test_a_label_is_text_and_nothing_else(pair: Comparison) -> None:
    for figure in (passk_figure(labelled(pair.policies[0], HOSTILE)),):
        svg = inline_svg(figure)
        root = ElementTree.fromstring(svg.replace("xlink:href", "href"))
        assert {element.tag for element in root.iter()} <= {
            "svg",
            "g",
            "path",
            "defs",
            "use",
            "text",
            "clipPath",
            "rect",
        }
        assert "script>" not in svg
        assert "\x1b" not in svg
        shown = [element.text or "" for element in root.iter("text")]
        assert any("$x_{1$ <b>" in text for text in shown)  # in the legend, although it begins with an underscore


def test_an_inline_figure_takes_the_colors_and_font_of_the_page(pair: Comparison) -> None:
    svg = inline_svg(passk_figure(pair.policies[0]))
    assert svg.startswith('<svg role="img" aria-label="pass@k of base and policy. base from ')
    assert "var(--policy, #1f5fa8)" in svg
    colors = {value for name, value in vars(figure_style).items() if name.isupper() and str(value).startswith("#")}
    assert not [color for color in re.findall(r"(?<!, )#[0-9a-f]{6}\b", svg) if color in colors]
    assert not re.search(r"(?:fill|stroke): (?:#|black|white)", svg)  # nothing that only one background can bear
    assert "font-family" not in svg
    assert "http" not in svg
    assert "<style" not in svg


def test_images_are_the_same_every_time(pair: Comparison) -> None:
    first, second = (inline_svg(passk_figure(pair.policies[0])) for _ in range(2))
    assert first == second
    one, two = (image(support_figure(pair.policies[0]), "svg") for _ in range(2))
    assert one == two
    assert b"<dc:date>" not in one
    assert image(support_figure(pair.policies[0]), "png").startswith(b"\x89PNG")


def test_a_figure_leaves_no_global_state(pair: Comparison) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    FigureCanvasAgg(passk_figure(pair.policies[0])).draw()
    assert dict(matplotlib.rcParams) == before
