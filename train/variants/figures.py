"""pass@1 against what must not be lost for it: the Pareto front of a sweep, and small multiples of it.

A kind is told by shape and fill as well as by colour, so that it can be read in print: plain a circle, controls hollow
diamonds, variants squares. Crosses are intervals over seeds. The same drawing is a PNG, an SVG, and part of the page,
where the page's own colours take over (light and dark).
"""

import io
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offleash.eval.estimate import Estimate
from offleash.eval.report.escape import html_text, one_line
from offleash.train.variants.analysis import Analysis
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.results import METRICS, Sweep

__all__ = ["image", "inline_svg", "pareto_figure", "pareto_front", "tradeoff_figure"]

INK, SOFT, RULE, BASE, POLICY = "#1c2127", "#5a6572", "#d9dee4", "#b35900", "#1f5fa8"
PAGE_COLOURS = {INK: "--ink", SOFT: "--soft", RULE: "--rule", BASE: "--base", POLICY: "--policy"}
SVG = {"svg.fonttype": "none", "svg.hashsalt": "offleash", "font.family": "sans-serif"}
DASHES = (0, (5, 3))
SHAPES = {PLAIN: ("o", SOFT, SOFT), "control": ("D", "none", SOFT), "variant": ("s", POLICY, POLICY)}
"""Kind -> marker, fill, edge."""
RANGES = {"pass_at_1": (0.0, 1.0), "nscr": (-1.0, 1.0), "srr": (0.0, 1.0), "ndr": (0.0, 1.0)}
PLACES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Around a point, where its name may stand; farther away where all of them are taken."""
DISTANCES = (7, 13, 20, 30)


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    kind: str
    """`plain`, `control` or `variant`."""
    x: Estimate
    y: Estimate


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The points that no other beats in one coordinate without losing in the other, from left to right."""
    front, best = [], -math.inf
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1])):
        if points[i][1] > best:
            front.append(i)
            best = points[i][1]
    return front[::-1]


def pareto_figure(sweep: Sweep, analysis: Analysis) -> Any:
    return _figure(sweep, analysis, ("nscr",), (7.0, 4.8), 1)


def tradeoff_figure(sweep: Sweep, analysis: Analysis) -> Any:
    return _figure(sweep, analysis, ("srr", "ndr", "distinct_correct", "answer_entropy"), (9.0, 7.0), 2)


def image(figure: Any, kind: str) -> bytes:
    """`png` or `svg`, on white."""
    from matplotlib import rc_context

    out = io.BytesIO()
    with rc_context(SVG):
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(out, format=kind, dpi=200, facecolor="white", metadata=metadata)
    return out.getvalue()


def inline_svg(figure: Any) -> str:
    """For an HTML page: transparent, in the colours of `offleash.eval.report.style`."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context(SVG):
        figure.savefig(out, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    for colour, name in PAGE_COLOURS.items():
        text = text.replace(colour, f"var({name}, {colour})")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html_text(figure.get_label())}" ', 1)


def _figure(sweep: Sweep, analysis: Analysis, metrics: Sequence[str], size: tuple[float, float], columns: int) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(len(metrics) / columns)
    figure = Figure(figsize=size, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    drawn = []
    for axes, metric in zip(panels, metrics, strict=True):
        points = _points(analysis, metric)
        _panel(axes, points, metric, sweep.base)
        drawn.append((axes, points))
    _legend(figure, {point.kind for _, points in drawn for point in points})
    canvas.draw()  # places are known only now
    figure.set_layout_engine("none")
    for axes, points in drawn:
        _name_points(axes, points, canvas.get_renderer())
    figure.set_label("; ".join(_described(metric, points) for metric, (_, points) in zip(metrics, drawn, strict=True)))
    return figure


def _points(analysis: Analysis, metric: str) -> list[Point]:
    points = [
        Point(
            one_line(v.name, 24),
            PLAIN if v.name == PLAIN else "control" if v.is_control else "variant",
            v.estimates["pass_at_1"],
            v.estimates[metric],
        )
        for v in analysis.variants
    ]
    return [point for point in points if math.isfinite(point.x.value) and math.isfinite(point.y.value)]


def _panel(axes: Any, points: Sequence[Point], metric: str, base: Mapping[str, float]) -> None:
    for point in points:
        _draw(axes, point, metric)
    front = pareto_front([(point.x.value, point.y.value) for point in points])
    axes.plot([points[i].x.value for i in front], [points[i].y.value for i in front], "-", color=SOFT, lw=1, zorder=1)
    if math.isfinite(base["pass_at_1"]):
        axes.axvline(base["pass_at_1"], color=BASE, lw=1, ls=DASHES, zorder=1)
    level = 0.0 if metric == "nscr" else base[metric]
    if math.isfinite(level):
        axes.axhline(level, color=BASE, lw=1, ls=DASHES, zorder=1)
    axes.margins(0.12)
    axes.set_xlabel("pass@1", color=INK)
    axes.set_ylabel(METRICS[metric] + (" (nats)" if metric == "answer_entropy" else ""), color=INK)
    axes.tick_params(colors=SOFT)
    axes.grid(color=RULE, lw=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_alpha(0.0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(SOFT)


def _legend(figure: Any, kinds: set[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], ls="none", marker=marker, mfc=fill, mec=edge, mew=1.4, ms=7, label=kind)
        for kind, (marker, fill, edge) in SHAPES.items()
        if kind in kinds
    ]
    handles += [Line2D([], [], color=SOFT, lw=1, label="front"), Line2D([], [], color=BASE, ls=DASHES, label="base")]
    figure.legend(handles=handles, loc="outside upper left", ncols=5, frameon=False, fontsize=9, labelcolor=INK)


def _draw(axes: Any, point: Point, metric: str) -> None:
    marker, fill, edge = SHAPES[point.kind]
    axes.errorbar(
        point.x.value,
        point.y.value,
        xerr=_arms(point.x, "pass_at_1"),
        yerr=_arms(point.y, metric),
        fmt=marker,
        ms=7,
        mfc=fill,
        mec=edge,
        mew=1.4,
        ecolor=edge,
        elinewidth=1,
        capsize=2,
        zorder=3,
    )


def _arms(e: Estimate, metric: str) -> list[list[float]] | None:
    """As far as the metric can go: the t interval of a few seeds may reach beyond."""
    low, high = RANGES.get(metric, (0.0, math.inf))
    if math.isnan(e.low):
        return None
    return [[max(e.value - max(e.low, low), 0.0)], [max(min(e.high, high) - e.value, 0.0)]]


def _name_points(axes: Any, points: Sequence[Point], renderer: Any) -> None:
    """Each name where it covers no marker and no other name, as near its point as that allows."""
    reach = 6 * axes.figure.dpi / 72
    spots = [axes.transData.transform((point.x.value, point.y.value)) for point in points]
    taken = [_box(x - reach, y - reach, x + reach, y + reach) for x, y in spots]
    for point in points:
        for distance, (right, up) in itertools.product(DISTANCES, PLACES):
            text = _name(axes, point, right, up, distance)
            box = text.get_window_extent(renderer)
            if axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and not any(map(box.overlaps, taken)):
                taken.append(box)
                break
            text.remove()
        else:
            _name(axes, point, *PLACES[0], DISTANCES[0])


def _name(axes: Any, point: Point, right: int, up: int, distance: float) -> Any:
    return axes.annotate(
        point.name,
        (point.x.value, point.y.value),
        xytext=(right * distance, up * distance),
        textcoords="offset points",
        ha={1: "left", 0: "center", -1: "right"}[right],
        va={1: "bottom", 0: "center", -1: "top"}[up],
        fontsize=9,
        color=INK,
    )


def _box(x0: float, y0: float, x1: float, y1: float) -> Any:
    from matplotlib.transforms import Bbox

    return Bbox([[x0, y0], [x1, y1]])


def _described(metric: str, points: Sequence[Point]) -> str:
    told = ", ".join(f"{p.name} {p.x.value:.3f} / {p.y.value:.3f}" for p in points)
    return f"pass@1 / {METRICS[metric]}: {told}"
