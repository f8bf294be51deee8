"""Arms as points: pass@1 against NSCR and other metrics.

Shape, fill and color show the kind of a point: plain is a circle, controls are hollow diamonds, variants are squares.
Error bars are intervals over seeds; long ones are clipped at the edge.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from offleash.eval.report.figure_style import BASE, DASHES, POLICY, SOFT, styled
from offleash.eval.report.sanitize import one_line
from offleash.eval.stats.intervals import Estimate
from offleash.train.variants.analysis import Analysis
from offleash.train.variants.equal_pass import rising
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.results import METRICS, Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPES = {PLAIN: ("o", SOFT, SOFT), "control": ("D", "none", SOFT), "variant": ("s", POLICY, POLICY)}
"""Kind -> marker, fill, edge."""
LINE = 0.165
"""Inches between names."""


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    kind: str
    """`plain`, `control` or `variant`."""
    x: Estimate
    y: Estimate
    place: int
    """Among the arms of the report, in whose page the figure's parts and the rows of tables are found by it."""


def gid(place: int) -> str:
    """The id of everything that is drawn of an arm: see `figure_style.inline_svg`."""
    return f"arm:{place}"


def kind_of(arm: str, is_control: bool) -> str:
    return PLAIN if arm == PLAIN else "control" if is_control else "variant"


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other point dominates, from left to right."""
    front, best = [], -math.inf
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1])):
        if points[i][1] > best:
            front.append(i)
            best = points[i][1]
    return front[::-1]


@styled()
def pareto_figure(sweep: Sweep, analysis: Analysis) -> "Figure":
    return _figure(sweep, analysis, ("nscr",), (8.0, 4.2), 1)


@styled()
def tradeoff_figure(sweep: Sweep, analysis: Analysis) -> "Figure":
    return _figure(sweep, analysis, ("srr", "ndr", "distinct_correct", "answer_entropy"), (6.0, 3.2), 2)


def _figure(
    sweep: Sweep, analysis: Analysis, metrics: Sequence[str], panel: tuple[float, float], columns: int
) -> "Figure":
    """`panel`: width and minimum height in inches; a panel grows with the number of names."""
    from matplotlib.figure import Figure

    drawn = [_points(analysis, metric) for metric in metrics]
    rows = math.ceil(len(metrics) / columns)
    height = max(panel[1], LINE * max(map(len, drawn)) + 1.0)
    figure = Figure(figsize=(panel[0] * columns, height * rows + 0.3))
    for axes, metric, points in zip(figure.subplots(rows, columns, squeeze=False).ravel(), metrics, drawn, strict=True):
        _panel(axes, points, metric, sweep.base)
        name_points(axes, points, LINE / (height - 1.0))
    _legend(figure, {point.kind for points in drawn for point in points})
    figure.set_label("; ".join(_told(metric, points) for metric, points in zip(metrics, drawn, strict=True)))
    return figure


def _points(analysis: Analysis, metric: str) -> list[Point]:
    points = [
        Point(one_line(v.name, 24), kind_of(v.name, v.is_control), v.estimates["pass_at_1"], v.estimates[metric], i)
        for i, v in enumerate(analysis.variants)
    ]
    return [point for point in points if math.isfinite(point.x.value) and math.isfinite(point.y.value)]


def _panel(axes: Any, points: Sequence[Point], metric: str, base: Mapping[str, float]) -> None:
    for point in points:
        draw_point(axes, point)
    front = pareto_front([(point.x.value, point.y.value) for point in points])
    axes.plot([points[i].x.value for i in front], [points[i].y.value for i in front], "-", color=SOFT, lw=1, zorder=1)
    if math.isfinite(base["pass_at_1"]):
        axes.axvline(base["pass_at_1"], color=BASE, lw=1, ls=DASHES, zorder=1)
    level = 0.0 if metric == "nscr" else base[metric]
    if math.isfinite(level):
        axes.axhline(level, color=BASE, lw=1, ls=DASHES, zorder=1)
    axes.set_xlim(window([point.x for point in points], base["pass_at_1"]))
    axes.set_ylim(window([point.y for point in points], level))
    axes.set(xlabel="pass@1", ylabel=METRICS[metric] + (" (nats)" if metric == "answer_entropy" else ""))


def _legend(figure: Any, kinds: set[str]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=SOFT, lw=1, label="front"), Line2D([], [], color=BASE, ls=DASHES, label="base")]
    figure.legend(handles=[*kind_handles(kinds), *lines], loc="outside upper left", ncols=5)


def kind_handles(kinds: set[str]) -> list[Any]:
    """Legend entries of the kinds of points that are drawn."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], ls="none", marker=marker, mfc=fill, mec=edge, mew=1.4, ms=7, label=kind)
        for kind, (marker, fill, edge) in SHAPES.items()
        if kind in kinds
    ]


def draw_point(axes: Any, point: Point) -> None:
    marker, fill, edge = SHAPES[point.kind]
    x, y = point.x.value, point.y.value
    style = {"ms": 6, "mfc": fill, "mec": edge, "mew": 1.4, "ecolor": (edge, 0.4), "elinewidth": 1, "capsize": 2}
    drawn = axes.errorbar(x, y, xerr=_arms(point.x), yerr=_arms(point.y), fmt=marker, zorder=3, **style)
    for part in drawn.get_children():
        part.set_gid(gid(point.place))


def _arms(e: Estimate) -> list[list[float]] | None:
    return None if math.isnan(e.low) else [[e.value - e.low], [e.high - e.value]]


def window(estimates: Sequence[Estimate], level: float) -> tuple[float, float]:
    """All points, the base, and room for an interval of median length; longer ones are clipped."""
    values = [v for v in (*(e.value for e in estimates), level) if math.isfinite(v)] or [0.0]
    usual = median([(e.high - e.low) / 2 for e in estimates if not math.isnan(e.low)] or [0.0])
    span = max(values) - min(values)
    room = max(min(usual, 0.25 * span), 0.08 * span) or max(usual, 1e-3)
    return min(values) - room, max(values) + room


def name_points(axes: Any, points: Sequence[Point], gap: float) -> None:
    """Names in a column at the right, each as close to the height of its point as the `gap` between names allows."""
    low, high = axes.get_ylim()
    points = sorted(points, key=lambda point: point.y.value)
    heights = rising([(point.y.value - low) / (high - low) - i * gap for i, point in enumerate(points)])
    top = 1 - (len(points) - 1) * gap
    for i, (point, height) in enumerate(zip(points, heights, strict=True)):
        name = axes.annotate(
            point.name,
            (point.x.value, point.y.value),
            xytext=(1.04, min(max(height, 0.0), top) + i * gap),
            textcoords="axes fraction",
            va="center",
            arrowprops={"arrowstyle": "-", "color": SOFT, "lw": 0.4, "shrinkA": 2, "shrinkB": 4, "relpos": (0, 0.5)},
            annotation_clip=False,
            zorder=2,
        )
        name.set_gid(gid(point.place))
        name.arrow_patch.set_gid(gid(point.place))


def _told(metric: str, points: Sequence[Point]) -> str:
    told = ", ".join(f"{p.name} {p.x.value:.3f} / {p.y.value:.3f}" for p in points)
    return f"pass@1 / {METRICS[metric]}: {told}"
