"""The figures of a planned sweep: exact NSCR against pass@1 with the leash line, and over the floor eps.

The curve is the KL-optimal reweighting of the base, at every pass@1: arms below it lost support that learning this much
need not cost, arms above it have units that reweighting does not give.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from offleash.eval.report.figure_style import BASE, DASHES, POLICY, SOFT, styled
from offleash.eval.report.sanitize import one_line
from offleash.eval.stats.exact_support import EPSILONS
from offleash.train.variants.figures import LINE, Point, draw_point, kind_handles, kind_of, name_points, window
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.planned.exact import ExactPath, leash_nscr
from offleash.train.variants.planned.verdicts import ArmResult, Judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEASH = "KL-optimal reweighting of the base at this pass@1"
CURVE_POINTS = 61
MOST_VARIANTS = 5
"""Lines of variants in the second figure: the best ones."""


@styled()
def leash_figure(judged: Judged, base: ExactPath) -> "Figure":
    """pass@1 against NSCR at the plan's floor, arms as points with intervals, the leash line as a curve."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    e = EPSILONS.index(judged.plan.eps)
    points = [
        Point(one_line(arm.trial.name, 24), kind_of(arm.trial.arm, arm.trial.is_control), arm.passed, arm.nscr_e[e], i)
        for i, arm in enumerate(judged.arms)
        if math.isfinite(arm.nscr_e[e].value)
    ]
    height = max(4.2, LINE * len(points) + 1.0)
    figure = Figure(figsize=(8.0, height + 0.3))
    axes = figure.subplots()
    for point in points:
        draw_point(axes, point)
    start = float(base.correct_tp()[0].mean())
    low, high = window([point.x for point in points], start)
    curve_x, curve_y = _leash_curve(base, min([start, *(point.x.value for point in points)]), high, e)
    axes.plot(curve_x, curve_y, color=BASE, lw=1.4, ls=DASHES, zorder=2)
    axes.plot([start], [0.0], "o", color=BASE, ms=6, zorder=3)
    for arm in judged.arms:
        if arm.trial.arm == PLAIN:
            _, passed, nscr = zip(*arm.trial.along(judged.plan.eps), strict=True)
            axes.plot(passed, nscr, color=SOFT, lw=1.0, zorder=1)
    at = [np.interp(point.x.value, curve_x, curve_y) for point in points]
    floor, top = window([point.y for point in points], 0.0)
    axes.set_xlim(low, high)
    axes.set_ylim(floor, max(top, 1.05 * max(at, default=0.0)))
    axes.set(xlabel="pass@1 (exact)", ylabel=f"NSCR at eps = {judged.plan.eps:g} (exact)")
    name_points(axes, points, LINE / (height - 1.0))
    plain = Line2D([], [], color=SOFT, lw=1.0, label="plain along its run")
    handles = [
        Line2D([], [], color=BASE, ls=DASHES, label=LEASH),
        plain,
        *kind_handles({point.kind for point in points}),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4)
    told = ", ".join(f"{point.name} {point.x.value:.3f} / {point.y.value:.3f}" for point in points)
    figure.set_label(f"pass@1 / NSCR({judged.plan.eps:g}): {told}; curve: {LEASH}")
    return figure


@styled()
def floors_figure(judged: Judged) -> "Figure":
    """NSCR at every floor: plain, the controls and the best variants, with the leash line at plain's pass@1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.4))
    axes = figure.subplots()
    plain = next(arm for arm in judged.arms if arm.trial.arm == PLAIN)
    shown = [arm for arm in judged.arms if arm.trial.is_control] + list(judged.variants[:MOST_VARIANTS])
    ends = [_floor_line(axes, arm, i) for i, arm in enumerate(shown)]
    line_e = [line.value for line in plain.line_e]
    axes.plot(EPSILONS, line_e, color=BASE, ls=DASHES, lw=1.8, label=f"{LEASH} (plain's)")
    axes.axhline(0.0, color=SOFT, lw=0.8)
    axes.set_xscale("log")
    axes.set_xticks(EPSILONS, [f"{eps:g}" for eps in EPSILONS])
    axes.minorticks_off()
    axes.invert_xaxis()
    axes.set(xlabel="floor eps: in support if the probability is at least eps", ylabel="NSCR (exact)")
    figure.legend(loc="outside upper left", ncols=3)
    figure.set_label(f"NSCR over eps {', '.join(f'{eps:g}' for eps in EPSILONS)}: {'; '.join(ends)}")
    return figure


def _leash_curve(base: ExactPath, lowest: float, high: float, e: int) -> tuple[list[float], list[float]]:
    """From the lowest pass@1, the base's or that of an arm below it, to that of the best arm."""
    passes = np.linspace(lowest, max(high, lowest + 1e-3), CURVE_POINTS)
    everything = np.ones((len(passes), base.problems))
    nscr_xe, _ = leash_nscr(base, everything, passes)
    known = ~np.isnan(nscr_xe[:, e])
    return passes[known].tolist(), nscr_xe[known, e].tolist()


def _floor_line(axes: Any, arm: ArmResult, i: int) -> str:
    values = [nscr.value for nscr in arm.nscr_e]
    name = one_line(arm.trial.name, 24)
    plain, control = arm.trial.arm == PLAIN, arm.trial.is_control
    style = {"color": SOFT if control else POLICY, "lw": 1.8 if plain else 1.1, "alpha": 1.0 if plain else 0.8}
    axes.plot(EPSILONS, values, marker="oDsv^<>Pp*hX"[i % 12], mfc="none" if control else POLICY, label=name, **style)
    return f"{name} {', '.join(f'{value:.3f}' for value in values)}"
