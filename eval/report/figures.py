"""The figures of a comparison: pass@k with the crossing, support as bars, metrics over a series and over thresholds."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offleash.eval.comparison.result import Comparison, PolicyResult
from offleash.eval.report.figure_style import BASE, INK, KEPT, LINES, OUT, PAPER, POLICY, SOFT, styled
from offleash.eval.report.numbers import count, estimate, number
from offleash.eval.report.sanitize import one_line
from offleash.eval.report.words import LEASH, common_k
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.support import detection_limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDE, _PANEL = (7.2, 3.9), (3.9, 2.6)
"""Inches."""
_CELLS = (
    ("preserved", "preserved", KEPT),
    ("shrunk", "shrunk (lost)", BASE),
    ("expanded", "expanded (gained)", POLICY),
    ("out", "out", OUT),
)
_LEGEND_COLUMNS = 3
_SHARE, _NET_SHARE, _POSITIVE = (0.0, 1.0), (-1.0, 1.0), (0.0, math.inf)


@styled()
def passk_figure(result: PolicyResult, others: Sequence[PolicyResult] = ()) -> "Figure":
    """Base, policy and reweighted base over k, other policies of a series thin, and where the lead changes hands."""
    curves = result.overall.curves
    figure, axes = _new_figure(_WIDE)
    for i, other in enumerate(others):
        label = "others of the series" if i == 0 else ""
        _curve(axes, "policy", other.overall.curves.ks, other.overall.curves.policy, label, thin=True)
    told = [
        _curve(axes, "base", curves.ks, curves.base, "base"),
        _curve(axes, "policy", curves.ks, curves.policy, one_line(result.side.label, 36)),
    ]
    if result.leash is not None:
        line = [_bare(value) for value in result.leash.pass_at_k]
        told.append(_curve(axes, "leash", curves.ks, line, LEASH))
    powers = [k for k in curves.ks if k & (k - 1) == 0]
    _finish(axes, "pass@k", _thinned([(k, f"{k:,}") for k in powers], 10), "k", _SHARE, log_x=True)
    for row, lead in enumerate(curves.leads[1:] if curves.state == "crosses" else ()):
        noise = "" if lead.beyond_noise else " within noise"
        told.append(f"{lead.leader} leads{noise} from k = {estimate(lead.since, number)}")
        _mark(axes, lead.since, told[-1], row)
    figure.set_label(f"pass@k of base and policy. {'; '.join(told)}")
    return figure


@styled()
def support_figure(result: PolicyResult) -> "Figure":
    """A stacked bar for units, problems and each threshold; with several tasks, one for each task as well."""
    scope = result.overall
    levels = [("problems", scope.problem_level)]
    if not scope.one_unit:
        levels.insert(0, ("units", scope.units))
    rows = [
        (f"{name}, hits ≥ {support.threshold}", support.estimates)
        for name, level in levels
        for support in (level.any_hit, level.stable)
        if support is not None
    ]
    if len(result.tasks) > 1:
        rows += [(one_line(task.name, 20), task.units.any_hit.estimates) for task in result.tasks]
    figure, axes = _new_figure((_WIDE[0], 0.45 + 0.34 * len(rows)))
    told = [_bar(axes, y, label, estimates) for y, (label, estimates) in enumerate(rows)]
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(bottom=False, labelbottom=False, left=False)
    _legend(axes, len(_CELLS), "left")
    figure.set_label(f"Support of base and policy. {'; '.join(told)}")
    return figure


def series_figures(comparison: Comparison) -> "list[Figure]":
    """pass@1, pass@k, SRR, NDR, NSCR and answer entropy over the steps."""
    results = comparison.policies
    steps = [result.side.step for result in results]
    by_step = all(step is not None for step in steps) and len(set(steps)) == len(steps)
    xs = [float(step) for step in steps if step is not None] if by_step else [float(i + 1) for i in range(len(results))]
    labels = [f"{x:g}" for x in xs] if by_step else [one_line(result.side.label, 10) for result in results]
    ticks, axis = _thinned(list(zip(xs, labels, strict=True)), 6), "step" if by_step else "policy"

    def panel(name: str, sides: Mapping[str, Sequence[Estimate]], limits: tuple[float, float]) -> "Figure":
        names = {"leash": "reweighted base"}
        lines = [(side, names.get(side, side), xs, values) for side, values in sides.items()]
        return _panel(name, lines, ticks, axis, limits)

    figures = []
    for k in sorted({1, common_k(comparison)}):
        curves = [(result.overall.curves, result.overall.curves.ks.index(k)) for result in results]
        sides = {"base": [c.base[at] for c, at in curves], "policy": [c.policy[at] for c, at in curves]}
        figures.append(panel(f"pass@{k:,}", sides, _SHARE))
    for metric in ("srr", "ndr", "nscr"):
        supports = [result.overall.units.any_hit for result in results]
        lines = {"policy": [support.estimates[metric] for support in supports]}
        lines["noise"] = [_bare(support.noise_metrics[metric]) for support in supports]
        if metric == "nscr" and all(result.leash is not None for result in results):
            lines["leash"] = [result.leash.units.against.line for result in results if result.leash is not None]
        figures.append(panel(f"{metric.upper()} of units", lines, _limits(metric)))
    rows = [result.overall.rows["answer_entropy"] for result in results]
    sides = {"base": [row.base for row in rows], "policy": [row.policy for row in rows]}
    return [*figures, panel("answer entropy (nats)", sides, _POSITIVE)]


def sensitivity_figures(result: PolicyResult) -> "list[Figure]":
    """SRR, NDR and NSCR at each threshold of probability: counted, and by the posterior."""
    rows = result.sensitivity
    xs = [row.eps for row in rows]
    ticks = _thinned([(eps, f"1/{round(1 / eps):,}") for eps in xs], 5)
    at = detection_limit(result.overall.n_min)
    mark = Estimate(at, at, at, 0) if xs[0] <= at <= xs[-1] else None
    figures = []
    for metric in ("srr", "ndr", "nscr"):
        counted = [_bare(float(getattr(row.observed, metric))) for row in rows]
        noise = [_bare(row.noise[metric]) for row in rows]
        posterior = [row.posterior[metric] for row in rows]
        lines = [
            ("neither", "posterior", xs, posterior),
            ("policy", "counted", xs, counted),
            ("noise", "noise", xs, noise),
        ]
        figures.append(_panel(metric.upper(), lines, ticks, "threshold ε", _limits(metric), log_x=True, mark=mark))
    return figures


@styled()
def _panel(
    name: str,
    lines: Sequence[tuple[str, str, Sequence[float], Sequence[Estimate]]],
    ticks: Sequence[tuple[float, str]],
    x_label: str,
    limits: tuple[float, float],
    log_x: bool = False,
    mark: Estimate | None = None,
) -> "Figure":
    """`lines`: (kind, label, xs, estimates); `mark` is the detection limit."""
    figure, axes = _new_figure(_PANEL)
    told = [_curve(axes, kind, xs, estimates, label) for kind, label, xs, estimates in lines]
    _finish(axes, name, ticks, x_label, limits, log_x)
    if mark is not None:
        _mark(axes, mark, "detection limit")
    figure.set_label(f"{name}. {'; '.join(told)}")
    return figure


def _new_figure(size: tuple[float, float]) -> tuple["Figure", Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots()


def _curve(
    axes: Any, kind: str, xs: Sequence[float], estimates: Sequence[Estimate], label: str, thin: bool = False
) -> str:
    """Draw what is defined; a sentence about it."""
    known = [(x, e) for x, e in zip(xs, estimates, strict=True) if math.isfinite(e.value)]
    at, values = [x for x, _ in known], [e.value for _, e in known]
    look = {**LINES[kind], "marker": "", "linewidth": 0.8, "alpha": 0.55} if thin else LINES[kind]
    # matplotlib leaves labels that begin with an underscore out of the legend.
    axes.plot(at, values, **look, clip_on=False, label=f" {label}" if label.startswith("_") else label)
    band = [(x, e.low, e.high) for x, e in known if math.isfinite(e.low) and math.isfinite(e.high)]
    if len(band) > 1 and not thin:
        axes.fill_between(*zip(*band, strict=True), color=look["color"], alpha=0.16, linewidth=0)
    if not known:
        return f"{label} undefined"
    return f"{label} from {values[0]:.3f} at {at[0]:g} to {values[-1]:.3f} at {at[-1]:g}"


def _finish(
    axes: Any,
    name: str,
    ticks: Sequence[tuple[float, str]],
    x_label: str,
    limits: tuple[float, float],
    log_x: bool = False,
) -> None:
    """Axes and legend; the y axis fits the data between round numbers within `limits`."""
    if log_x:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xticks(*zip(*ticks, strict=True))
    axes.set_yticks(_round_ticks(limits, *axes.dataLim.intervaly))
    rows = math.ceil(len(axes.get_legend_handles_labels()[1]) / _LEGEND_COLUMNS)
    axes.set_title(name, pad=5 + 15 * rows)  # above the legend
    axes.set(xlabel=x_label, xlim=axes.get_xlim(), ylim=axes.get_yticks()[[0, -1]])
    axes.grid(visible=False, axis="x")
    _legend(axes, _LEGEND_COLUMNS, "right")


def _round_ticks(limits: tuple[float, float], low: float, high: float) -> Any:
    """Round numbers around [low, high], within `limits`."""
    from matplotlib.ticker import MaxNLocator

    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = max(0.0, limits[0]), 1.0
    if high - low < 1e-3:
        low, high = low - 0.05, high + 0.05
    low, high = max(low, limits[0]), min(high, limits[1])
    return MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)


def _mark(axes: Any, at: Estimate, words: str, row: int = 0) -> None:
    """A vertical line with a note, the first at the bottom, and its interval shaded; infinite ends reach the edge."""
    left, right = axes.get_xlim()
    x, low, high = (min(max(value, left), right) for value in at[:3])
    if low < high:
        axes.axvspan(low, high, color=SOFT, alpha=0.14, linewidth=0)
    axes.axvline(x, color=INK, linewidth=1, linestyle=":")
    place, _ = axes.transAxes.inverted().transform(axes.transData.transform((x, 0)))
    side, shift = ("right", -5) if place > 0.6 else ("left", 5)
    base = axes.get_xaxis_transform()
    axes.annotate(words, (x, 0.03 + 0.07 * row), (shift, 0), base, textcoords="offset points", ha=side, color=SOFT)


def _bar(axes: Any, y: int, label: str, estimates: Mapping[str, Estimate]) -> str:
    """Shares of a row with the counts written where they fit; a sentence about it."""
    counts = {cell: 0.0 if math.isnan(e := estimates[cell].value) else e for cell, _, _ in _CELLS}
    total, left = sum(counts.values()) or 1.0, 0.0
    for cell, name, color in _CELLS:
        share, text = counts[cell] / total, count(counts[cell])
        edge = SOFT if cell == "out" else PAPER
        axes.barh(y, share, 0.74, left, color=color, edgecolor=edge, linewidth=0.6, label=name if y == 0 else "")
        if share > 0.016 * len(text):
            ink = INK if cell == "out" else PAPER
            axes.text(left + share / 2, y, text, ha="center", va="center", color=ink)
        left += share
    return f"{label}: " + ", ".join(f"{name} {count(counts[cell])}" for cell, name, _ in _CELLS)


def _legend(axes: Any, columns: int, side: str) -> None:
    """Above the axes."""
    if axes.get_legend_handles_labels()[1]:
        anchor = (1, 1) if side == "right" else (0, 1)
        axes.legend(loc=f"lower {side}", bbox_to_anchor=anchor, ncols=columns)


def _bare(value: float) -> Estimate:
    """Without an interval."""
    return Estimate(value, math.nan, math.nan, 0)


def _limits(metric: str) -> tuple[float, float]:
    return _NET_SHARE if metric == "nscr" else _SHARE


def _thinned(ticks: Sequence[tuple[float, str]], most: int) -> list[tuple[float, str]]:
    """Every second, third, ... tick, few enough to be read."""
    return list(ticks)[:: max(1, math.ceil(len(ticks) / most))]
