"""Which figures a report has: pass@k with the crossing, the bar of support, metrics over a series and over floors."""

import math
from collections.abc import Mapping, Sequence

from offleash.eval.comparison.result import Comparison, PolicyResult
from offleash.eval.report.numbers import number
from offleash.eval.report.plots import Bar, Line, Mark, bars, chart, log_ticks
from offleash.eval.report.sanitize import one_line
from offleash.eval.report.tables import common_k
from offleash.eval.stats.intervals import Estimate

_PANEL = (400, 270)
_CELLS = (
    ("kept", "preserved", "preserved"),
    ("base", "shrunk (lost)", "shrunk"),
    ("policy", "expanded (gained)", "expanded"),
    ("out", "out", "out"),
)


def passk_figure(result: PolicyResult, earlier: Sequence[PolicyResult] = ()) -> str:
    """Base and policy over k with their bands, other policies of a series thin, and where the base overtakes."""
    curves = result.overall.curves
    lines = []
    for i, other in enumerate(earlier):
        label = "others of the series" if i == 0 else ""
        lines.append(_line(label, "policy", other.overall.curves.ks, other.overall.curves.policy, thin=True))
    lines.append(_line("base", "base", curves.ks, curves.base))
    lines.append(_line(one_line(result.side.label, 36), "policy", curves.ks, curves.policy))
    at, mark = curves.crossing, None
    if curves.state == "crosses":
        words = f"base overtakes at k = {number(at.value)} [{number(at.low)}, {number(at.high)}]"
        mark = Mark(at.value, words, at.low, at.high)
    powers = [k for k in curves.ks if k & (k - 1) == 0]
    return chart(
        "pass@k of base and policy",
        lines,
        x_label="k (draws, logarithmic)",
        x_ticks=log_ticks(powers),
        y_label="pass@k",
        log_x=True,
        limits=(0.0, 1.0),
        mark=mark,
        size=(720, 400),
    )


def support_figure(result: PolicyResult) -> str:
    """One bar for units, problems and each threshold; of several tasks one for each."""
    scope = result.overall
    levels = [("problems", scope.problem_level)]
    if not scope.one_unit:
        levels.insert(0, ("units", scope.units))
    rows = []
    for name, level in levels:
        for support in (level.any_hit, level.stable):
            if support is not None:
                rows.append(_bar(f"{name}, hits ≥ {support.threshold}", support.estimates))
    if len(result.tasks) > 1:
        rows += [_bar(one_line(task.name, 20), task.units.any_hit.estimates) for task in result.tasks]
    return bars("What became of the base's support", rows, width=720)


def series_figures(comparison: Comparison) -> list[str]:
    """pass@1, pass@k, SRR, NDR, NSCR and answer entropy over the steps."""
    results = comparison.policies
    steps = [result.side.step for result in results]
    by_step = all(step is not None for step in steps) and len(set(steps)) == len(steps)
    xs = [float(step) for step in steps if step is not None] if by_step else [float(i + 1) for i in range(len(results))]
    labels = [f"{x:g}" for x in xs] if by_step else [one_line(result.side.label, 10) for result in results]
    every = max(1, math.ceil(len(xs) / 6))
    ticks = list(zip(xs, labels, strict=True))[::every]
    axis = "step" if by_step else "policy"

    def both(name: str, base: Sequence[Estimate], policy: Sequence[Estimate], limits: tuple[float, float]) -> str:
        lines = [_line("base", "base", xs, base), _line("policy", "policy", xs, policy)]
        return _panel(name, lines, ticks, axis, limits)

    figures = []
    for k in sorted({1, common_k(comparison)}):
        curves = [(result.overall.curves, result.overall.curves.ks.index(k)) for result in results]
        base, policy = [c.base[at] for c, at in curves], [c.policy[at] for c, at in curves]
        figures.append(both(f"pass@{k:,}", base, policy, (0.0, 1.0)))
    for metric, limits in (("srr", (0.0, 1.0)), ("ndr", (0.0, 1.0)), ("nscr", (-1.0, 1.0))):
        values = [result.overall.units.any_hit.estimates[metric] for result in results]
        figures.append(_panel(f"{metric.upper()} of units", [_line("", "policy", xs, values)], ticks, axis, limits))
    rows = [result.overall.rows["answer_entropy"] for result in results]
    base, policy = [row.base for row in rows], [row.policy for row in rows]
    return [*figures, both("answer entropy (nats)", base, policy, (0.0, math.inf))]


def sensitivity_figures(result: PolicyResult) -> list[str]:
    """SRR, NDR and NSCR at each floor: counted, and by the posterior."""
    rows = result.sensitivity
    xs = [row.eps for row in rows]
    ticks = [(eps, f"1/{round(1 / eps):,}") for eps in xs[:: max(1, math.ceil(len(xs) / 5))]]
    at = result.overall.units.any_hit.detection_limit
    mark = Mark(at, "floor") if xs[0] <= at <= xs[-1] else None
    figures = []
    for metric in ("srr", "ndr", "nscr"):
        observed = [(row.eps, float(getattr(row.observed, metric))) for row in rows]
        lines = [
            _line("posterior", "kept", xs, [row.posterior[metric] for row in rows]),
            Line("counted", "policy", observed),
        ]
        limits = (-1.0, 1.0) if metric == "nscr" else (0.0, 1.0)
        figures.append(_panel(metric.upper(), lines, ticks, "floor ε (logarithmic)", limits, log_x=True, mark=mark))
    return figures


def _panel(
    name: str,
    lines: Sequence[Line],
    ticks: Sequence[tuple[float, str]],
    x_label: str,
    limits: tuple[float, float],
    log_x: bool = False,
    mark: Mark | None = None,
) -> str:
    return chart(
        name, lines, x_label=x_label, x_ticks=ticks, y_label=name, log_x=log_x, limits=limits, mark=mark, size=_PANEL
    )


def _line(label: str, kind: str, xs: Sequence[float], estimates: Sequence[Estimate], thin: bool = False) -> Line:
    points = [(float(x), e.value) for x, e in zip(xs, estimates, strict=True)]
    band = [] if thin else [(e.low, e.high) for e in estimates]
    return Line(label, kind, points, band, thin)


def _bar(label: str, estimates: Mapping[str, Estimate]) -> Bar:
    values = [(kind, name, estimates[cell].value) for kind, name, cell in _CELLS]
    return Bar(label, [(kind, name, 0.0 if math.isnan(count) else count) for kind, name, count in values])
