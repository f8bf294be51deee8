"""Figures as SVG text, to stand inside a page: no image files, no library, colours from the page's own style.

A side is told by colour, line and marker at once (base: dashed, circles; policy: solid, squares), so that a figure can
be read in print and by anyone. Classes `base`, `policy`, `kept` and `out` are coloured by `offleash.eval.report.style`;
the colours are those of the pass@k figure in TensorBoard. Nothing a model wrote gets in here but labels, escaped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offleash.eval.report.sanitize import html_text

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 40, 44


@dataclass(frozen=True, slots=True)
class Line:
    """Points (x, y), NaN y left out; `band` has (low, high) for each, or is empty."""

    label: str
    kind: str
    """`base`, `policy`, or `kept` for neither."""
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at x with a note, and the interval it lies in shaded (infinite ends reach the edge)."""

    x: float
    label: str
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a stacked bar: counts by kind."""

    label: str
    counts: Sequence[tuple[str, str, float]]
    """(class, name, count)."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where data lands on the page."""

    width: int
    height: int
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log_x: bool

    def x(self, value: float) -> float:
        at = math.log2(value) if self.log_x else value
        low, high = (math.log2(v) if self.log_x else v for v in (self.x_low, self.x_high))
        return _LEFT + (self.width - _LEFT - _RIGHT) * ((at - low) / (high - low) if high > low else 0.5)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return self.height - _BOTTOM - (self.height - _TOP - _BOTTOM) * min(max(share, 0.0), 1.0)


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    x_ticks: Sequence[tuple[float, str]],
    y_label: str,
    log_x: bool = False,
    limits: tuple[float, float] = (-1.0, 1.0),
    mark: Mark | None = None,
    size: tuple[int, int] = (640, 360),
) -> str:
    """Lines with bands over a linear or logarithmic axis; the y axis fits the data within `limits`."""
    seen = [y for line in lines for _, y in line.points] + [y for line in lines for pair in line.band for y in pair]
    y_ticks = nice_ticks([y for y in seen if math.isfinite(y)], limits)
    xs = [x for line in lines for x, _ in line.points] + [x for x, _ in x_ticks]
    frame = _Frame(*size, min(xs), max(xs), y_ticks[0], y_ticks[-1], log_x)
    body = [
        _axes(frame, x_ticks, y_ticks, x_label, y_label),
        _mark(frame, mark) if mark is not None else "",
        *(_band(frame, line) for line in lines),
        *(_line(frame, line) for line in lines),
        _legend(lines),
    ]
    return _svg(title, _described(lines, mark), size, body)


def bars(title: str, rows: Sequence[Bar], *, width: int = 640) -> str:
    """Stacked bars of shares, one row each, with counts written where they fit."""
    left, step = 150, 34
    height = 34 + step * len(rows)
    body = [_bar_legend(rows[0])]
    for i, row in enumerate(rows):
        total = sum(count for _, _, count in row.counts) or 1.0
        top, at = 34 + step * i, float(left)
        body.append(f'<text x="{left - 8}" y="{top + 17}" text-anchor="end">{html_text(row.label)}</text>')
        for kind, _, count in row.counts:
            extent = (width - left - _RIGHT) * count / total
            if extent > 0:
                body.append(f'<rect class="cell {kind}" x="{at:.1f}" y="{top}" width="{extent:.1f}" height="24"/>')
            if extent > 9 * len(f"{count:,.0f}"):
                middle = f'x="{at + extent / 2:.1f}" y="{top + 17}" text-anchor="middle"'
                body.append(f'<text class="on {kind}" {middle}>{count:,.0f}</text>')
            at += extent
    words = [f"{row.label}: " + ", ".join(f"{name} {count:,.0f}" for _, name, count in row.counts) for row in rows]
    return _svg(title, "; ".join(words), (width, height), body)


def nice_ticks(values: Sequence[float], limits: tuple[float, float] = (-math.inf, math.inf)) -> list[float]:
    """Round steps that hold the values, kept within `limits`."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < 1e-3:
        low, high = low - 0.05, high + 0.05
    low, high = max(low, limits[0]), min(high, limits[1])
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def log_ticks(ks: Sequence[float], most: int = 10) -> list[tuple[float, str]]:
    """Every second, third, ... of a ladder, few enough to be read."""
    every = max(1, math.ceil(len(ks) / most))
    return [(k, f"{k:,.0f}") for k in list(ks)[::every]]


def _axes(
    frame: _Frame, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[float], x_label: str, y_label: str
) -> str:
    right, bottom = frame.width - _RIGHT, frame.height - _BOTTOM
    parts = []
    for y in y_ticks:
        at = frame.y(y)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{_tick(y)}</text>')
    for x, label in x_ticks:
        at = frame.x(x)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{html_text(label)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle:.1f}" y="{frame.height - 8}" text-anchor="middle">{html_text(x_label)}</text>')
    parts.append(f'<text x="{right}" y="14" text-anchor="end">{html_text(y_label)}</text>')
    return "".join(parts)


def _tick(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") or "0"


def _band(frame: _Frame, line: Line) -> str:
    pairs = [
        (frame.x(x), frame.y(low), frame.y(high))
        for (x, _), (low, high) in zip(line.points, line.band, strict=False)
        if math.isfinite(low) and math.isfinite(high)
    ]
    if len(pairs) < 2:
        return ""
    outline = [(x, high) for x, _, high in pairs] + [(x, low) for x, low, _ in reversed(pairs)]
    return f'<polygon class="band {line.kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in outline)}"/>'


def _line(frame: _Frame, line: Line) -> str:
    at = [(frame.x(x), frame.y(y)) for x, y in line.points if math.isfinite(y)]
    kind = f"{line.kind} thin" if line.thin else line.kind
    path = f'<polyline class="line {kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in at)}"/>'
    return path if line.thin else path + "".join(_point(line.kind, x, y) for x, y in at)


def _point(kind: str, x: float, y: float) -> str:
    if kind != "policy":
        return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'
    return f'<rect class="dot policy" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'


def _mark(frame: _Frame, mark: Mark) -> str:
    def inside(value: float) -> float:
        return frame.x(min(max(value, frame.x_low), frame.x_high))

    top, bottom, at = _TOP, frame.height - _BOTTOM, inside(mark.x)
    parts = []
    if not math.isnan(mark.low):
        low, high = inside(mark.low), inside(mark.high)
        parts.append(f'<rect class="span" x="{low:.1f}" y="{top}" width="{high - low:.1f}" height="{bottom - top}"/>')
    parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>')
    anchor, shift = ("end", -6) if at > frame.width * 0.6 else ("start", 6)
    label = html_text(mark.label)
    parts.append(f'<text class="note" x="{at + shift:.1f}" y="{bottom - 8}" text-anchor="{anchor}">{label}</text>')
    return "".join(parts)


def _legend(lines: Sequence[Line]) -> str:
    parts, at = [], float(_LEFT)
    named = {(line.label, line.kind, line.thin): line for line in lines if line.label}
    for line in named.values():
        kind = f"{line.kind} thin" if line.thin else line.kind
        parts.append(f'<line class="line {kind}" x1="{at:.0f}" x2="{at + 26:.0f}" y1="10" y2="10"/>')
        parts.append("" if line.thin else _point(line.kind, at + 13, 10))
        parts.append(f'<text x="{at + 32:.0f}" y="14">{html_text(line.label)}</text>')
        at += 52 + 6.8 * len(line.label)
    return "".join(parts)


def _bar_legend(row: Bar) -> str:
    parts, at = [], 150.0
    for kind, name, _ in row.counts:
        parts.append(f'<rect class="cell {kind}" x="{at:.0f}" y="6" width="12" height="12"/>')
        parts.append(f'<text x="{at + 18:.0f}" y="16">{html_text(name)}</text>')
        at += 40 + 6.8 * len(name)
    return "".join(parts)


def _described(lines: Sequence[Line], mark: Mark | None) -> str:
    words = []
    for line in lines:
        known = [(x, y) for x, y in line.points if math.isfinite(y)]
        if known and line.label:
            (x0, y0), (x1, y1) = known[0], known[-1]
            words.append(f"{line.label} from {y0:.3f} at {x0:g} to {y1:.3f} at {x1:g}")
    return "; ".join([*words, *([mark.label] if mark else [])])


def _svg(title: str, description: str, size: tuple[int, int], body: Sequence[str]) -> str:
    width, height = size
    label = html_text(f"{title}. {description}")
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f"<title>{html_text(title)}</title>{''.join(body)}</svg>"
    )
